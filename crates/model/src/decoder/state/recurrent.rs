//! Values of recurrent states on the device: those after a text's last tokens.

use super::LayerState;
use netcl_tensor::ops::prelude::{Kernel, cl_file};
use netcl_tensor::{Error, Result, Tensor};

static KERNEL: Kernel = Kernel::new("recurrent_state", cl_file!("recurrent.cl"))
    .tune(&[("WG", &[128, 256])])
    .tune_cpu(&[("WG", &[64])]);

/// Positions of texts: tokens before their new ones, u32 (B) or (1) for all, and their pages, u32 (B, M), if states are in pages.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// Tokens before.
    pub position: &'a Tensor,
    /// Pages of each text; `None`: texts are stored contiguously.
    pub pages: Option<&'a Tensor>,
}

/// Arguments of both kernels.
struct Places<'a> {
    pages: &'a Tensor,
    /// Pages per text.
    most: usize,
    texts: usize,
    kept: usize,
    size: usize,
}

impl LayerState {
    fn places<'a>(&'a self, at: At<'a>) -> Result<Places<'a>> {
        let pages = at
            .pages
            .or(self.own_pages())
            .ok_or_else(|| Error::internal("a recurrent state without pages"))?;
        let [_, _, kept, size] = self.rows().dims4()?;
        let most = pages.dims().last().copied().unwrap_or(1).max(1);
        Ok(Places { pages, most, texts: pages.count() / most, kept, size })
    }

    /// Returns the values (B, N) before the new tokens of each text; zeros at its start.
    ///
    /// # Errors
    /// Device errors.
    pub fn recall(&self, at: At<'_>) -> Result<Tensor> {
        let Places { pages, most, texts, kept, size } = self.places(at)?;
        let y = Tensor::empty(self.rows().device(), [texts, size], self.rows().dtype())?;
        let launch = KERNEL.launch("recall").define("DTYPE", y.dtype().code()).define("KEPT", kept);
        let launch =
            launch.define("PAGE", self.page()).define("EACH", at.position.count() > 1).items(y.count());
        let launch = launch.read_base(self.rows()).read_base(at.position).read_base(pages).write(&y);
        let offsets = [at.position, pages].map(|x| x.layout().offset as u32);
        let launch = launch.scalar(self.rows().layout().offset).scalar(offsets[0]).scalar(offsets[1]);
        launch.scalar(most as u32).scalar(size).scalar(y.count()).run()?;
        Ok(y)
    }

    /// Stores the values x (B, T, N) after the new tokens of each text.
    ///
    /// # Errors
    /// Device errors.
    pub fn keep(&self, x: &Tensor, at: At<'_>) -> Result<()> {
        let Places { pages, most, texts, kept, size } = self.places(at)?;
        let ([batch, tokens, width], x) = (x.dims3()?, x.contiguous()?);
        if batch != texts || width != size || x.dtype() != self.rows().dtype() {
            return Err(Error::internal(format!(
                "values {} {} of a recurrent state of {texts} texts, {size} elements",
                x.dtype(),
                x.shape()
            )));
        }
        let launch = KERNEL.launch("keep").define("DTYPE", x.dtype().code()).define("KEPT", kept);
        let launch = launch.define("PAGE", self.page()).define("TOKENS", tokens);
        let launch = launch.define("EACH", at.position.count() > 1).items(x.count());
        let launch = launch.read(&x).write_base(self.rows()).read_base(at.position).read_base(pages);
        let offsets = [at.position, pages].map(|x| x.layout().offset as u32);
        let launch = launch.scalar(self.rows().layout().offset).scalar(offsets[0]).scalar(offsets[1]);
        launch.scalar(most as u32).scalar(size).scalar(x.count()).run()
    }
}
