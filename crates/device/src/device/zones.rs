//! Guard zones before and after each buffer that no launch may change. `NETCL_DEBUG=bounds` uses them on devices where no simulator checks each
//! access.

use super::Device;
use super::buffer::Buffer;
use crate::pool::ZONE;
use crate::{Error, Label, Result};

/// Value of every byte of a guard zone.
const PATTERN: u8 = 0xA5;

impl Device {
    /// Writes the pattern into the guard zones of a new buffer.
    pub(super) fn mark_zones(&self, buffer: &Buffer) -> Result<()> {
        for (at, bytes) in buffer.zones().into_iter().flatten() {
            self.driver().fill(self.queue(), &buffer.root(), at, bytes, &[PATTERN])?;
        }
        Ok(())
    }

    /// Checks the guard zones of the arguments of a launch.
    ///
    /// # Errors
    /// `Launch` with the kernel, the argument and the position of the write.
    pub(super) fn check_zones<'a>(
        &self,
        label: Label,
        touched: impl Iterator<Item = (Option<usize>, &'a Buffer)>,
    ) -> Result<()> {
        for (argument, buffer) in touched {
            let whole = buffer.whole();
            let Some(zones) = whole.zones() else { continue };
            for (behind, (at, bytes)) in zones.into_iter().enumerate() {
                let mut found = vec![0; bytes];
                self.driver().read(self.queue(), &whole.root(), at, &mut found)?;
                // Report the changed byte nearest to the buffer: the start of the last changed run before it, or the first changed byte after it.
                let changed = |b: &u8| *b != PATTERN;
                let before =
                    |last: usize| found[..last].iter().rposition(|b| !changed(b)).map_or(0, |i| i + 1);
                let place = match behind {
                    0 => found.iter().rposition(changed).map(|i| before(i) as i64 - bytes as i64),
                    _ => found.iter().position(changed).map(|i| (whole.bytes() + i) as i64),
                };
                let Some(place) = place else { continue };
                // Restore the pattern, so that the next launch is not blamed.
                self.driver().fill(self.queue(), &whole.root(), at, bytes, &[PATTERN])?;
                let named = argument
                    .map_or("memory that it reaches by addresses".into(), |i| format!("argument {i}"));
                return Err(Error::launch(format!(
                    "bounds: kernel {} ({}) wrote to byte {place} of {named}, a buffer of {} bytes ({}); guard zones of {ZONE} bytes around each \
                     buffer are checked",
                    label.name,
                    label.variant,
                    whole.bytes(),
                    whole.tag()
                )));
            }
        }
        Ok(())
    }
}
