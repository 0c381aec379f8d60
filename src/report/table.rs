//! Plain tables: no lines, figures to the right, nothing at the ends of rows.

use comfy_table::{CellAlignment, Table, presets};

/// Draws rows under a header; the columns named in `right` are aligned to the right.
#[must_use]
pub fn plain_table(header: &[&str], rows: &[Vec<String>], right: &[usize]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for index in 0..header.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            if right.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::plain_table;

    #[test]
    fn figures_stand_right_and_rows_end_clean() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), "1000".to_owned()]];
        assert_eq!(plain_table(&["NAME", "N"], &rows, &[1]), "NAME     N\na        1\nlong  1000");
    }
}
