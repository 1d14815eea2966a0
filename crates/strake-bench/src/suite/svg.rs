//! Two kinds of plots as inline SVG: bars with their scatter, and lines over a count. Pure.

use std::fmt::Write;

use crate::table::figure;

/// Text that may stand between tags and in attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// One bar: its mean, and the least and greatest sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// What it is.
    pub label: String,
    /// Length of the bar.
    pub mean: f64,
    /// Left end of the whisker.
    pub min: f64,
    /// Right end of the whisker.
    pub max: f64,
}

const WIDTH: f64 = 720.0;
const LABEL: f64 = 170.0;
const FIGURE: f64 = 90.0;
const ROW: f64 = 26.0;
const TOP: f64 = 34.0;

fn open(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
         role=\"img\" font-family=\"sans-serif\" font-size=\"13\">\n<title>{0}</title>\n<text \
         x=\"0\" y=\"18\" font-weight=\"bold\">{0}</text>\n",
        escape(title)
    )
}

/// How lengths grow with figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// In proportion.
    Linear,
    /// By decades above the one below the least figure: for figures of different kinds.
    Decades,
}

impl Scale {
    /// The length of a figure in points, where `least` and `most` are those of the plot.
    fn length(self, figure: f64, least: f64, most: f64) -> f64 {
        let full = WIDTH - LABEL - FIGURE;
        match self {
            Scale::Linear if most > 0.0 => full * figure / most,
            Scale::Decades if least > 0.0 && figure > 0.0 => {
                let start = least.log10().floor() - 0.3;
                full * (figure.log10() - start) / (most.log10() - start)
            }
            _ => 0.0,
        }
    }
}

/// Horizontal bars with whiskers from the least to the greatest sample.
pub fn bars(title: &str, scale: Scale, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.max.max(bar.mean)).fold(0.0, f64::max);
    let least = bars.iter().map(|bar| bar.min).fold(f64::INFINITY, f64::min);
    let length = |figure: f64| scale.length(figure, least, most);
    let mut svg = open(TOP + ROW * bars.len() as f64 + 6.0, title);
    for (row, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let middle = y + ROW / 2.0;
        let (left, right) = (LABEL + length(bar.min), LABEL + length(bar.max));
        write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n<rect x=\"{LABEL:.1}\" \
             y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#4477aa\"/>\n<line x1=\"{left:.1}\" \
             x2=\"{right:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" stroke=\"#222\" \
             stroke-width=\"2\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            LABEL - 8.0,
            middle + 4.0,
            escape(&bar.label),
            y + 4.0,
            length(bar.mean),
            ROW - 8.0,
            right.max(LABEL + length(bar.mean)) + 6.0,
            middle + 4.0,
            figure(bar.mean),
        )
        .expect("invariant: writing to a string does not fail");
    }
    svg.push_str("</svg>\n");
    svg
}

const PLOT_HEIGHT: f64 = 220.0;
const COLOURS: [&str; 4] = ["#4477aa", "#cc6677", "#117733", "#aa7700"];

/// Lines over equally spaced labels, with the figure at every point.
pub fn lines(title: &str, labels: &[String], series: &[(&str, Vec<f64>)]) -> String {
    let most = series.iter().flat_map(|(_, points)| points).copied().fold(0.0, f64::max);
    let step = (WIDTH - 160.0) / (labels.len().max(2) - 1) as f64;
    let x = |index: usize| 40.0 + step * index as f64;
    let y = |value: f64| TOP + PLOT_HEIGHT * (1.0 - if most > 0.0 { value / most } else { 0.0 });
    let bottom = TOP + PLOT_HEIGHT;
    let mut svg = open(bottom + 30.0, title);
    let end = x(labels.len().saturating_sub(1));
    let mut add = |text: String| svg.push_str(&text);
    add(format!(
        "<path d=\"M40 {TOP:.1} V{bottom:.1} H{end:.1}\" fill=\"none\" stroke=\"#999\"/>\n"
    ));
    for (index, label) in labels.iter().enumerate() {
        add(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            x(index),
            bottom + 18.0,
            escape(label)
        ));
    }
    for (number, (name, points)) in series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let path: Vec<String> = points
            .iter()
            .enumerate()
            .map(|(index, value)| format!("{:.1},{:.1}", x(index), y(*value)))
            .collect();
        add(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            path.join(" ")
        ));
        for (index, value) in points.iter().enumerate() {
            add(format!(
                "<circle cx=\"{0:.1}\" cy=\"{1:.1}\" r=\"3\" fill=\"{colour}\"/><text \
                 x=\"{0:.1}\" y=\"{2:.1}\" font-size=\"11\" fill=\"{colour}\">{3}</text>\n",
                x(index),
                y(*value),
                y(*value) - 7.0,
                figure(*value)
            ));
        }
        if let Some(last) = points.last() {
            add(format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>\n",
                end + 40.0,
                y(*last) + 4.0,
                escape(name)
            ));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_scale_to_the_longest_and_carry_their_scatter() {
        let bar = |label: &str, mean, min, max| Bar { label: label.into(), mean, min, max };
        let svg = bars(
            "MiB/s <test>",
            Scale::Linear,
            &[bar("a", 50.0, 40.0, 60.0), bar("b", 92.0, 92.0, 92.0)],
        );
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("<title>MiB/s &lt;test&gt;</title>"));
        // 460 points are 92 MiB/s: bar a is 250 long, its whisker goes from 200 to 300.
        assert!(svg.contains("width=\"250.0\""), "{svg}");
        assert!(svg.contains("x1=\"370.0\" x2=\"470.0\""), "{svg}");
        assert!(svg.contains("width=\"460.0\""));
    }

    #[test]
    fn decades_are_equally_long() {
        let length = |figure| Scale::Decades.length(figure, 1.0, 1_000.0);
        let step = length(100.0) - length(10.0);
        assert!((length(1_000.0) - length(100.0) - step).abs() < 1e-9);
        assert!(length(1.0) > 0.0 && length(1_000.0) <= WIDTH - LABEL - FIGURE + 1e-9);
    }

    #[test]
    fn lines_reach_from_bottom_to_top() {
        let labels = ["1".to_string(), "2".to_string()];
        let svg = lines("scaling", &labels, &[("write", vec![0.0, 10.0])]);
        assert!(svg.contains("points=\"40.0,254.0 600.0,34.0\""), "{svg}");
    }

    #[test]
    fn nothing_to_draw_is_drawn_without_a_division() {
        for svg in [bars("none", Scale::Decades, &[]), lines("none", &[], &[("x", Vec::new())])] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let zero = Bar { label: "z".into(), mean: 0.0, min: 0.0, max: 0.0 };
        assert!(!bars("zero", Scale::Decades, &[zero]).contains("NaN"));
    }
}
