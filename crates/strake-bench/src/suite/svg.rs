//! Two kinds of plots as inline SVG: bars with their scatter, and lines over a count. Pure.
//!
//! [`STYLE`] has the looks of their shapes, for the page's style sheet.

use crate::figures::figure;
use strake_report::Drawing;

/// The looks of the plots' shapes.
pub const STYLE: &str = "svg{font:13px sans-serif}svg .head{font-weight:bold}svg .bar{fill:#4477aa}\
    svg .whisker{stroke:#222;stroke-width:2}svg .end{text-anchor:end}\
    svg .middle{text-anchor:middle}svg polyline{fill:none;stroke-width:2}\
    svg .axis{stroke:#999;stroke-width:1}\
    text.series0{fill:#4477aa}text.series1{fill:#cc6677}text.series2{fill:#117733}\
    text.series3{fill:#aa7700}polyline.series0{stroke:#4477aa}polyline.series1{stroke:#cc6677}\
    polyline.series2{stroke:#117733}polyline.series3{stroke:#aa7700}circle.series0{fill:#4477aa}\
    circle.series1{fill:#cc6677}circle.series2{fill:#117733}circle.series3{fill:#aa7700}";

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
    let mut drawing = open(TOP + ROW * bars.len() as f64 + 6.0, title);
    for (row, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let middle = y + ROW / 2.0;
        let (left, right) = (LABEL + length(bar.min), LABEL + length(bar.max));
        let end = LABEL + length(bar.mean);
        drawing.text(LABEL - 8.0, middle + 4.0, "end", &bar.label);
        drawing.rect([LABEL, y + 4.0, length(bar.mean), ROW - 8.0], "bar", "");
        drawing.line([left, middle, right, middle], "whisker");
        drawing.text(right.max(end) + 6.0, middle + 4.0, "figure", &figure(bar.mean));
    }
    drawing.finish(title)
}

fn open(height: f64, title: &str) -> Drawing {
    let mut drawing = Drawing::new(WIDTH, height);
    drawing.text(0.0, 18.0, "head", title);
    drawing
}

const PLOT_HEIGHT: f64 = 220.0;
/// Classes of the lines, which come around again after the last.
const SERIES: [&str; 4] = ["series0", "series1", "series2", "series3"];

/// Lines over equally spaced labels, with the figure at every point.
pub fn lines(title: &str, labels: &[String], series: &[(&str, Vec<f64>)]) -> String {
    let most = series.iter().flat_map(|(_, points)| points).copied().fold(0.0, f64::max);
    let step = (WIDTH - 160.0) / (labels.len().max(2) - 1) as f64;
    let x = |index: usize| 40.0 + step * index as f64;
    let y = |value: f64| TOP + PLOT_HEIGHT * (1.0 - if most > 0.0 { value / most } else { 0.0 });
    let bottom = TOP + PLOT_HEIGHT;
    let mut drawing = open(bottom + 30.0, title);
    let end = x(labels.len().saturating_sub(1));
    drawing.lines(&[[40.0, TOP], [40.0, bottom], [end, bottom]], "axis");
    for (index, label) in labels.iter().enumerate() {
        drawing.text(x(index), bottom + 18.0, "middle", label);
    }
    for (number, (name, points)) in series.iter().enumerate() {
        let class = SERIES[number % SERIES.len()];
        let places: Vec<[f64; 2]> =
            points.iter().enumerate().map(|(index, value)| [x(index), y(*value)]).collect();
        drawing.lines(&places, class);
        for ([x, y], value) in places.iter().zip(points) {
            drawing.dot(*x, *y, class);
            drawing.text(*x, y - 7.0, class, &figure(*value));
        }
        if let Some([_, y]) = places.last() {
            drawing.text(end + 40.0, y + 4.0, class, name);
        }
    }
    drawing.finish(title)
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
        assert!(svg.contains("aria-label=\"MiB/s &lt;test&gt;\""));
        // 460 points are 92 MiB/s: bar a is 250 long, its whisker goes from 200 to 300.
        assert!(svg.contains("width=\"250.0\""), "{svg}");
        assert!(svg.contains("x1=\"370.0\" y1=\"47.0\" x2=\"470.0\" y2=\"47.0\""), "{svg}");
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
