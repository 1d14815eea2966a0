//! The suite's report as one HTML file without anything from elsewhere: tables and inline SVG.

use super::markdown::{Document, latency_cells, stage_cells};
use super::stages::Stage;
use super::svg::{self, Bar, Scale};
use crate::md::listing;
use crate::statistics::summarize;
use strake_report::escape;

const STYLE: &str = "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}\
    table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;border-bottom:1px solid \
    #ccc;text-align:left}td.n{text-align:right}svg{width:100%;margin:1em 0}h1 small{color:#666}";

/// A table whose columns from `figures` on hold figures.
fn table(heads: &[&str], figures: usize, rows: impl Iterator<Item = Vec<String>>) -> String {
    let head: String = heads.iter().map(|head| format!("<th>{}</th>", escape(head))).collect();
    let mut text = format!("<table>\n<tr>{head}</tr>\n");
    for row in rows {
        let cells: String = row
            .iter()
            .enumerate()
            .map(|(column, cell)| {
                let class = if column >= figures { " class=\"n\"" } else { "" };
                format!("<td{class}>{}</td>", escape(cell))
            })
            .collect();
        text.push_str(&format!("<tr>{cells}</tr>\n"));
    }
    text.push_str("</table>\n");
    text
}

fn plot(title: &str, scale: Scale, stages: &[Stage], unit: &str) -> String {
    let bars: Vec<Bar> = stages
        .iter()
        .filter(|stage| stage.unit == unit)
        .map(|stage| {
            let summary = summarize(&stage.samples);
            Bar {
                label: stage.name.clone(),
                mean: summary.mean,
                min: summary.min,
                max: summary.max,
            }
        })
        .collect();
    svg::bars(title, scale, &bars)
}

/// The report.
pub fn render(document: &Document<'_>) -> String {
    let results = document.results;
    let stages = &results.stages;
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Storage \
         benchmark</title>\n<style>{STYLE}{}</style></head><body>\n<h1>Storage benchmark \
         <small>strake bench suite{}</small></h1>\n<p><b>Score {}</b></p>\n",
        svg::STYLE,
        if results.plan.quick { " --quick" } else { "" },
        escape(&document.score_line())
    );
    let facts = document.facts().into_iter().map(|(name, value)| vec![name, value]);
    text.push_str(&table(&["", ""], 2, facts));
    text.push_str(
        "<h2>Results</h2>\n<p>Bars are means, lines reach from the least to the \
                   greatest repetition.</p>\n",
    );
    text.push_str(&plot("Bandwidth, MiB/s", Scale::Linear, stages, "MiB/s"));
    text.push_str(&plot("Operations per second (decades)", Scale::Decades, stages, "op/s"));
    text.push_str(&plot("Latency, µs (less is better)", Scale::Linear, stages, "µs"));
    let labels: Vec<String> = results.scaling.iter().map(|point| point.tasks.to_string()).collect();
    let series = [
        ("write", results.scaling.iter().map(|point| point.write).collect()),
        ("read", results.scaling.iter().map(|point| point.read).collect()),
    ];
    text.push_str(&svg::lines("Sequential MiB/s by number of tasks", &labels, &series));
    let heads = ["stage", "what", "unit", "mean", "least", "greatest", "spread"];
    text.push_str(&table(&heads, 3, stages.iter().map(|stage| stage_cells(stage).to_vec())));
    text.push_str("<h2>Latency of single operations, last repetition</h2>\n");
    let heads = ["stage", "p50", "p95", "p99", "p99.9", "max"];
    let rows = stages.iter().filter_map(latency_cells).map(|row| row.to_vec());
    text.push_str(&table(&heads, 1, rows));
    if !results.listings.is_empty() {
        let listed = escape(&listing::layout(&results.listings));
        text.push_str(&format!("<h2>Create, list, remove</h2>\n<pre>{listed}</pre>\n"));
    }
    text.push_str("<h2>Notes</h2>\n<ul>\n");
    for note in &results.notes {
        text.push_str(&format!("<li>{}</li>\n", escape(note)));
    }
    text.push_str("</ul>\n</body></html>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::score::score;
    use super::super::stages::tests::results;
    use super::*;
    use crate::report::Report;

    #[test]
    fn the_page_stands_alone_and_escapes_what_it_shows() {
        let mut results = results();
        results.set("easy write", vec![1000.0, 1100.0]);
        results.set("md <b> create", vec![5.0]);
        let report = Report::new("suite", Vec::new(), None);
        let score = score(&results);
        let page = render(&Document { report: &report, results: &results, score: &score });
        assert_eq!(page.matches("<svg ").count(), 4);
        assert_eq!(page.matches("<svg ").count(), page.matches("</svg>").count());
        assert!(page.contains("<td>easy write</td>"));
        assert!(page.contains("md &lt;b&gt; create") && !page.contains("<b> create"));
        assert!(page.contains("A note with &lt;angle&gt; &amp; ampersand."));
        // Nothing is fetched.
        assert!(!page.contains("http"));
        assert!(!page.contains("<script"));
    }
}
