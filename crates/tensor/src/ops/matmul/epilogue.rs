//! The operations between a product's sums and C: those in the product's kernel, and those that run after it.

use super::super::elementwise::UNARY;
use super::super::map::map_into;
use super::super::prelude::*;
use netcl_kernel::{Launch, Text};

/// Bits of the kernels' `flags`.
const ADD_C: i32 = 1;
const BIAS: i32 = 2;
pub(super) const COLUMN_SUMS: i32 = 4;

/// The operations that are applied to a sum before it is stored in C.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Epilogue<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Bias `(n)` of C's type, added to each row.
    pub bias: Option<&'a Tensor>,
    /// Adds to the present contents of C.
    pub add: bool,
    /// Operation with another matrix: in the product's kernel if it supports this, in a separate kernel otherwise.
    pub aux: EpilogueInputs<'a>,
}

/// Operation of an epilogue with another dense matrix of C's shape and type.
#[derive(Clone, Copy)]
pub(in crate::ops) enum EpilogueInputs<'a> {
    /// No operation.
    None,
    /// Adds the matrix.
    Residual(&'a Tensor),
    /// C becomes GELU (tanh) of the sum. The sum itself is stored in the matrix.
    Gelu(&'a Tensor),
    /// C is multiplied by the derivative of GELU (tanh) at the matrix's elements.
    GeluGrad(&'a Tensor),
    /// C is an expression of the sum and other tensors.
    Tree(&'a Tree<'a>),
}

/// An expression of a product's elements, compiled to kernel source: see [`lazy`](crate::lazy).
pub(crate) struct Tree<'a> {
    /// Functions that compute C's elements and write the further outputs: `FV tree_v(FV sum, ulong row, ulong column, ulong n TREE_PARAMETERS)` for
    /// adjacent elements of a row, `float tree_1(float sum, …)` for one element. `void tree_warm(ulong at TREE_PARAMETERS)` prefetches inputs by
    /// WARM.
    pub functions: Text,
    /// Kernel parameters of the expression, with a comma before each.
    pub parameters: Text,
    /// The same parameters as arguments of the functions.
    pub arguments: Text,
    /// Operands in the order of the parameters: tensors to read, each followed by its offset in elements; tensors that are written from their
    /// start; scalars.
    pub inputs: &'a [Tensor],
    pub outputs: &'a [Tensor],
    pub scalars: &'a [f32],
    /// Destination of the product if the kernel does not support expressions; `apart` then computes the expression.
    pub product: &'a Tensor,
    pub apart: &'a dyn Fn() -> Result<()>,
}

impl Tree<'_> {
    /// Adds the defines of the expression, which apply to all kernels of the program.
    pub(in crate::ops) fn define<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let launch = launch.define("TREE", self.functions.clone());
        let launch = launch.define("TREE_PARAMETERS", self.parameters.clone());
        launch.define("TREE_ARGUMENTS", self.arguments.clone())
    }
    /// Adds the defines and binds the arguments.
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

impl<'a> EpilogueInputs<'a> {
    /// Returns the other matrix.
    pub(super) fn tensor(&self) -> Option<&'a Tensor> {
        match self {
            Self::None | Self::Tree(_) => None,
            Self::Residual(x) | Self::Gelu(x) | Self::GeluGrad(x) => Some(x),
        }
    }
}

impl Epilogue<'_> {
    /// Plain product: C = A B.
    pub(in crate::ops) const NONE: Epilogue<'static> =
        Epilogue { alpha: 1.0, bias: None, add: false, aux: EpilogueInputs::None };

    /// Returns the expression, if there is one.
    pub(super) fn tree(&self) -> Option<&Tree<'_>> {
        if let EpilogueInputs::Tree(tree) = self.aux { Some(tree) } else { None }
    }
    pub(super) fn flags(&self) -> i32 {
        (if self.add { ADD_C } else { 0 }) | (if self.bias.is_some() { BIAS } else { 0 })
    }
}

/// Applies the operation with another matrix after the product. `c` holds the sum; for [`EpilogueInputs::Gelu`], the other matrix holds it.
pub(super) fn finish(c: &Tensor, aux: &EpilogueInputs<'_>) -> Result<()> {
    match aux {
        EpilogueInputs::None => Ok(()),
        EpilogueInputs::Tree(tree) => (tree.apart)(),
        EpilogueInputs::Residual(x) => map_into("x0 + x1", &[*x, c], &[], c),
        EpilogueInputs::Gelu(before) => map_into(gelu()?.0, &[*before], &[], c),
        EpilogueInputs::GeluGrad(before) => map_into(gelu()?.1, &[*before, c], &[], c),
    }
}

/// Returns the expressions of GELU (tanh) and its derivative from the table of element-wise operations.
pub(super) fn gelu() -> Result<(&'static str, &'static str)> {
    let row = UNARY.iter().find(|row| row.name == "gelu_tanh");
    row.map(|row| (row.y, row.dx)).ok_or_else(|| Error::internal("no element-wise op gelu_tanh"))
}
