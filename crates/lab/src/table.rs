//! Tables for people: columns as wide as their widest cell, two spaces between them.

/// Rows of cells below a header.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns aligned to the right, for numbers.
    right: Vec<bool>,
}

impl Table {
    /// Creates a table with these column names; a name that begins with `>` makes a column of numbers.
    pub fn new(header: &[&str]) -> Self {
        let right = header.iter().map(|h| h.starts_with('>')).collect();
        let names = header.iter().map(|h| h.trim_start_matches('>').to_owned()).collect();
        Self { rows: vec![names], right }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the lines without trailing spaces.
    pub fn lines(&self) -> Vec<String> {
        let columns = self.right.len();
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        let cell = |row: &[String], c: usize| {
            let text = row.get(c).map_or("", String::as_str);
            if self.right[c] {
                format!("{text:>w$}", w = widths[c])
            } else {
                format!("{text:<w$}", w = widths[c])
            }
        };
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = (0..columns).map(|c| cell(row, c)).collect();
            cells.join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }

    /// Returns one string.
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", ">n"]);
        table.row(["a".into(), "10".into()]);
        table.row(["größe".into(), "7".into()]);
        assert_eq!(table.lines(), ["name    n", "a      10", "größe   7"]);
    }
}
