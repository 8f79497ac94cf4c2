//! Panels: the blocks of 16 interleaved rows, so that a vector has one lane per row.
//!
//! A block is divided into units, numbers of four, two or one bytes that kernels read as such: words of codes, f16, small scales. For each block
//! along the rows, a panel has the units in order, and each unit of row 0, row 1, … in turn. Nothing else changes, except that rows of zeros are
//! added after the last row to a multiple of 16, so the file's bytes can be restored. A unit at byte `at` of a block is at byte `16 * at` of the
//! panel's block.

use super::format::Format;
use super::threads::shared_out;

/// Rows of a panel.
pub(crate) const PANEL: usize = 16;

impl Format {
    /// Returns the units of a block in order: their number, and bytes of each. `None` if no kernel reads panels of the format.
    fn units(&self) -> Option<&'static [(usize, usize)]> {
        self.kernels.as_ref().map(|kernels| kernels.units)
    }

    /// Returns whether kernels read panels of the format.
    pub(crate) fn has_panels(&self) -> bool {
        self.units().is_some()
    }
}

/// Calls `of` for each unit of a block, with its bytes and its start in the block.
fn each(units: &[(usize, usize)], mut of: impl FnMut(usize, usize)) {
    let mut at = 0;
    for (count, bytes) in units {
        for _ in 0..*count {
            of(at, *bytes);
            at += bytes;
        }
    }
}

/// Converts whole rows to panels, on all cores. The format has [`Format::units`], and rows have `row` bytes.
pub(super) fn packed(format: &Format, row: usize, bytes: &[u8]) -> Vec<u8> {
    let Some(units) = format.units().filter(|_| row > 0) else { return bytes.to_vec() };
    let mut out = vec![0; (bytes.len() / row).next_multiple_of(PANEL) * row];
    let one = |rows: &[u8], panel: &mut [u8]| {
        for (r, line) in rows.chunks_exact(row).enumerate() {
            for (block, to) in
                line.chunks_exact(format.bytes).zip(panel.chunks_exact_mut(PANEL * format.bytes))
            {
                each(units, |at, n| {
                    let place = PANEL * at + r * n;
                    to[place..place + n].copy_from_slice(&block[at..at + n]);
                });
            }
        }
    };
    let panels = out.len() / (PANEL * row);
    shared_out(panels, out.len(), bytes.chunks(PANEL * row).zip(out.chunks_exact_mut(PANEL * row)), &|(
        a,
        b,
    )| {
        one(a, b);
    });
    out
}

/// Restores the rows of panels.
pub(super) fn unpacked(format: &Format, row: usize, rows: usize, panels: &[u8]) -> Vec<u8> {
    let Some(units) = format.units().filter(|_| row > 0) else { return panels.to_vec() };
    let mut out = vec![0; rows * row];
    let one = |panel: &[u8], rows: &mut [u8]| {
        for (r, line) in rows.chunks_exact_mut(row).enumerate() {
            for (block, from) in
                line.chunks_exact_mut(format.bytes).zip(panel.chunks_exact(PANEL * format.bytes))
            {
                each(units, |at, n| {
                    let place = PANEL * at + r * n;
                    block[at..at + n].copy_from_slice(&from[place..place + n]);
                });
            }
        }
    };
    let parts = panels.chunks(PANEL * row).zip(out.chunks_mut(PANEL * row));
    shared_out(panels.len() / (PANEL * row), panels.len(), parts, &|(a, b)| one(a, b));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::FORMATS;

    #[test]
    fn bytes_come_back_from_panels() {
        let mut formats = 0;
        for format in FORMATS.into_iter().filter(|f| f.has_panels()) {
            let whole: usize = format.units().unwrap().iter().map(|(count, bytes)| count * bytes).sum();
            assert_eq!(whole, format.bytes, "{format}");
            assert!(format.on_devices(), "{format}");
            for (rows, blocks) in [(1, 1), (16, 2), (37, 3), (1031, 4)] {
                let row = blocks * format.bytes;
                let bytes: Vec<u8> = (0..rows * row).map(|i| (i * 131 + i / 251) as u8).collect();
                let panels = packed(format, row, &bytes);
                assert_eq!(panels.len(), rows.next_multiple_of(16) * row, "{format}");
                assert!(panels != bytes, "{format}");
                assert!(unpacked(format, row, rows, &panels) == bytes, "{format}, {rows} rows");
            }
            formats += 1;
        }
        assert_eq!(formats, FORMATS.iter().filter(|f| f.on_devices()).count());
    }

    /// A word of codes of row 3, block 1.
    #[test]
    fn a_unit_lies_where_kernels_look_for_it() {
        let format = Format::named("Q4_0").unwrap();
        let bytes: Vec<u8> = (0..16 * 36).map(|i| (i % 251) as u8).collect();
        let panels = packed(format, 36, &bytes);
        let at = 2 + 4 * 2;
        assert_eq!(panels[16 * (18 + at) + 4 * 3..][..4], bytes[3 * 36 + 18 + at..][..4]);
    }
}
