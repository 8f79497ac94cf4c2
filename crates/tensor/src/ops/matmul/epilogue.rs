//! What happens to the sums of a product on their way into C, and what of it is done after the product.

use super::super::elementwise::UNARY;
use super::super::map::map_into;
use super::super::prelude::*;
use netcl_kernel::{Launch, Text};

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
    /// C is an expression of the sum and of other tensors.
    Tree(&'a Tree<'a>),
}

/// An expression of a product's elements that was made into text: see [`lazy`](crate::lazy).
pub(crate) struct Tree<'a> {
    /// Functions `FV tree_v(FV sum, ulong row, ulong column, ulong n TREE_PARAMETERS)` of neighbours of a row and `float tree_1(float sum, …)` of
    /// one element: what C becomes. They write the further outputs. `void tree_warm(ulong at TREE_PARAMETERS)` asks ahead by WARM.
    pub functions: Text,
    /// Parameters that the kernels have for it, with a comma before each.
    pub parameters: Text,
    /// The same as arguments of the functions.
    pub arguments: Text,
    /// In the order of the parameters: tensors that are read, each with its offset in elements; tensors that are written from their
    /// start; numbers.
    pub inputs: &'a [Tensor],
    pub outputs: &'a [Tensor],
    pub scalars: &'a [f32],
    /// Where the product goes for a kernel that takes no expression, and what computes the expression then.
    pub product: &'a Tensor,
    pub apart: &'a dyn Fn() -> Result<()>,
}

impl Tree<'_> {
    /// Its defines, which the program has for all of its kernels.
    pub(in crate::ops) fn define<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let launch = launch.define("TREE", self.functions.clone());
        let launch = launch.define("TREE_PARAMETERS", self.parameters.clone());
        launch.define("TREE_ARGUMENTS", self.arguments.clone())
    }
    /// Its defines and arguments.
    pub(in crate::ops) fn bind<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let mut launch = self.define(launch);
        for x in self.inputs {
            launch = launch.read_base(x).scalar(x.layout().offset);
        }
        for y in self.outputs {
            launch = launch.write_base(y);
        }
        self.scalars.iter().fold(launch, |launch, s| launch.scalar(*s))
    }
}

impl<'a> Aux<'a> {
    /// The other matrix.
    pub(super) fn tensor(&self) -> Option<&'a Tensor> {
        match self {
            Self::None | Self::Tree(_) => None,
            Self::Residual(x) | Self::Gelu(x) | Self::GeluGrad(x) => Some(x),
        }
    }
}

impl Epilogue<'_> {
    /// C is the product.
    pub(in crate::ops) const NONE: Epilogue<'static> =
        Epilogue { alpha: 1.0, bias: None, add: false, aux: Aux::None };

    /// The expression, if there is one.
    pub(super) fn tree(&self) -> Option<&Tree<'_>> {
        if let Aux::Tree(tree) = self.aux { Some(tree) } else { None }
    }
    pub(super) fn flags(&self) -> i32 {
        (if self.add { ADD_C } else { 0 }) | (if self.bias.is_some() { BIAS } else { 0 })
    }
}

/// What an epilogue does with another matrix, after the product: `c` holds the sum, or for [`Aux::Gelu`] that matrix does.
pub(super) fn finish(c: &Tensor, aux: &Aux<'_>) -> Result<()> {
    match aux {
        Aux::None => Ok(()),
        Aux::Tree(tree) => (tree.apart)(),
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
