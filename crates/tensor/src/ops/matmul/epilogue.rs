//! What happens to the sums of a product on their way into C, and what of it is done after the product.

use super::super::elementwise::UNARY;
use super::super::map::map_into;
use super::super::prelude::*;

/// Bits of the kernels' `flags`.
const ADD_C: i32 = 1;
const BIAS: i32 = 2;
pub(super) const COLUMN_SUMS: i32 = 4;

/// What happens to a sum on its way into C.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Epilogue<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Added to each row: `(n)`, of C's type.
    pub bias: Option<&'a Tensor>,
    /// Add to what C holds.
    pub add: bool,
    /// What else is done: on the way where the kernel can, after it where not.
    pub aux: Aux<'a>,
}

/// What an epilogue does with another matrix of C's shape and type, dense.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Aux<'a> {
    /// Nothing.
    None,
    /// Adds it.
    Residual(&'a Tensor),
    /// C becomes GELU (tanh) of the sum, and the matrix the sum.
    Gelu(&'a Tensor),
    /// C is multiplied by the derivative of GELU (tanh) there.
    GeluGrad(&'a Tensor),
}

impl<'a> Aux<'a> {
    /// The other matrix.
    pub(super) fn tensor(&self) -> Option<&'a Tensor> {
        match self {
            Self::None => None,
            Self::Residual(x) | Self::Gelu(x) | Self::GeluGrad(x) => Some(x),
        }
    }
}

impl Epilogue<'_> {
    /// C is the product.
    pub(in crate::ops) const NONE: Epilogue<'static> =
        Epilogue { alpha: 1.0, bias: None, add: false, aux: Aux::None };

    pub(super) fn flags(&self) -> i32 {
        (if self.add { ADD_C } else { 0 }) | (if self.bias.is_some() { BIAS } else { 0 })
    }
}

/// What an epilogue does with another matrix, after the product: `c` holds the sum, or for [`Aux::Gelu`] that matrix does.
pub(super) fn finish(c: &Tensor, aux: &Aux<'_>) -> Result<()> {
    match aux {
        Aux::None => Ok(()),
        Aux::Residual(x) => map_into("x0 + x1", &[*x, c], &[], c),
        Aux::Gelu(before) => map_into(gelu()?.0, &[*before], &[], c),
        Aux::GeluGrad(before) => map_into(gelu()?.1, &[*before, c], &[], c),
    }
}

/// Expressions of GELU (tanh) and of its gradient, as the element-wise op has them.
pub(super) fn gelu() -> Result<(&'static str, &'static str)> {
    let row = UNARY.iter().find(|row| row.name == "gelu_tanh");
    row.map(|row| (row.y, row.dx)).ok_or_else(|| Error::internal("no element-wise op gelu_tanh"))
}
