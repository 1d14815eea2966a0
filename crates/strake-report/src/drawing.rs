//! Drawings as SVG that stands inside an HTML page, without scripts and fonts of its own.
//!
//! Shapes get their colours from classes, which the page's style sheet defines. A class is a
//! constant of the caller, never text from elsewhere. All other text is made safe here.

use std::fmt::Write as _;

/// Text made safe for HTML and SVG, between tags and in attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A drawing under construction; y grows downwards.
pub struct Drawing {
    width: f64,
    height: f64,
    body: String,
}

impl Drawing {
    /// An empty drawing.
    pub fn new(width: f64, height: f64) -> Drawing {
        Drawing { width, height, body: String::new() }
    }

    /// A rectangle. A title that is not empty shows when the pointer rests on it.
    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], class: &str, title: &str) {
        let place =
            format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"");
        match title {
            "" => self.add(format_args!("<rect class=\"{class}\" {place}/>")),
            _ => {
                let title = escape(title);
                self.add(format_args!(
                    "<rect class=\"{class}\" {place}><title>{title}</title></rect>"
                ));
            }
        }
    }

    /// Text that begins at `x`, on the line `y`.
    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        self.add(format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"));
    }

    /// A line.
    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], class: &str) {
        self.add(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    /// Lines from point to point.
    pub fn lines(&mut self, points: &[[f64; 2]], class: &str) {
        let points: Vec<String> = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        self.add(format_args!("<polyline class=\"{class}\" points=\"{points}\"/>"));
    }

    /// A dot.
    pub fn dot(&mut self, x: f64, y: f64, class: &str) {
        self.add(format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"));
    }

    fn add(&mut self, shape: std::fmt::Arguments<'_>) {
        writeln!(self.body, "{shape}").expect("invariant: writing to a string does not fail");
    }

    /// The drawing as a file of its own. `style` has the looks of the classes.
    pub fn finish_alone(self, label: &str, style: &str) -> String {
        let drawn = self.finish(label);
        let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" ";
        let drawn = drawn.replacen("<svg ", head, 1);
        drawn.replacen(">\n", &format!(">\n<style>{style}</style>\n"), 1)
    }

    /// The drawing; `label` says what it shows to those who cannot see it.
    pub fn finish(self, label: &str) -> String {
        let (width, height, body) = (self.width, self.height, self.body);
        let label = escape(label);
        format!(
            "<svg role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {width} {height}\" \
             style=\"max-width:{width}px\">\n{body}</svg>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_stand_in_order_and_text_is_safe() {
        let mut drawing = Drawing::new(100.0, 50.5);
        drawing.rect([1.0, 2.0, 3.0, 4.25], "bar", "a < \"b\"");
        drawing.text(5.0, 6.0, "head", "R&D");
        drawing.lines(&[[0.0, 0.0], [1.0, 2.0]], "axis");
        assert_eq!(
            drawing.finish("<all>"),
            "<svg role=\"img\" aria-label=\"&lt;all&gt;\" viewBox=\"0 0 100 50.5\" \
             style=\"max-width:100px\">\n\
             <rect class=\"bar\" x=\"1.0\" y=\"2.0\" width=\"3.0\" height=\"4.2\">\
             <title>a &lt; &quot;b&quot;</title></rect>\n\
             <text class=\"head\" x=\"5.0\" y=\"6.0\">R&amp;D</text>\n\
             <polyline class=\"axis\" points=\"0.0,0.0 1.0,2.0\"/>\n</svg>\n"
        );
    }

    #[test]
    fn a_drawing_of_its_own_has_its_looks_with_it() {
        let mut drawing = Drawing::new(10.0, 20.0);
        drawing.dot(1.0, 2.0, "it");
        let drawn = drawing.finish_alone("one > dot", ".it{fill:red}");
        let wanted = "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" \
                      aria-label=\"one &gt; dot\" viewBox=\"0 0 10 20\" \
                      style=\"max-width:10px\">\n<style>.it{fill:red}</style>\n\
                      <circle class=\"it\" cx=\"1.0\" cy=\"2.0\" r=\"3\"/>\n</svg>\n";
        assert_eq!(drawn, wanted);
    }
}
