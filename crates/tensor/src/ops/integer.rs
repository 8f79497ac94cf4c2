//! Integer arithmetic, and writes to parts of tensors. These do not have gradients. Integers wrap at 32 bits.

use super::copied;
use super::map::{map_typed, map_typed_into};
use super::prelude::*;

/// Computes a binary operation of `a` and `b`, integers of one type, broadcast against each other.
pub(super) fn binary(name: &str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check::one_device(name, &[a, b])?;
    let expression = match name {
        "add" => "(uint)x0 + (uint)x1",
        "sub" => "(uint)x0 - (uint)x1",
        "mul" => "(uint)x0 * (uint)x1",
        "maximum" => "x0 > x1 ? x0 : x1",
        "minimum" => "x0 < x1 ? x0 : x1",
        _ => {
            return Err(Error::dtype(format!(
                "{name}: the operands are {}, expected f32, f16 or bf16",
                a.dtype()
            )));
        }
    };
    map_typed(expression, &[a, b], &[], &a.shape().broadcast(b.shape(), name)?, a.dtype())
}

/// Returns whether both are integers of one type.
pub(super) fn are(a: &Tensor, b: &Tensor) -> bool {
    matches!(a.dtype(), DType::I32 | DType::U32) && a.dtype() == b.dtype()
}

impl Tensor {
    /// Overwrites the elements by `values`, which broadcast to this shape and are converted to this type. This tensor may be a view of any layout
    /// without repeated elements. Not recorded on the tape.
    ///
    /// # Errors
    /// `Shape` if the values do not broadcast, `Unsupported` for a tensor with repeated elements.
    pub fn assign(&self, values: &Self) -> Result<()> {
        check::one_device("assign", &[self, values])?;
        // The source may overlap with elements that are already overwritten.
        let same = self.storage().whole().same(values.storage().whole());
        let values = if same { copied(&values.detach())? } else { values.detach() };
        map_typed_into("x0", &[&values], &[], self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;
    use netcl_device::Settings;

    #[test]
    fn integers_are_exact_and_wrap() {
        for device in [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()] {
            let a = Tensor::from_i32(&device, [2, 1], &[16_777_217, i32::MIN]).unwrap();
            let b = Tensor::from_i32(&device, [3], &[1, -1, 7]).unwrap();
            let values = |t: Result<Tensor>| -> Vec<i32> {
                t.unwrap().to_u32().unwrap().into_iter().map(u32::cast_signed).collect()
            };
            assert_eq!(
                values(a.add(&b)),
                [16_777_218, 16_777_216, 16_777_224, -2_147_483_647, i32::MAX, -2_147_483_641]
            );
            assert_eq!(
                values(a.mul(&b)),
                [16_777_217, -16_777_217, 117_440_519, i32::MIN, i32::MIN, i32::MIN]
            );
            assert_eq!(values(a.maximum(&b)), [16_777_217, 16_777_217, 16_777_217, 1, -1, 7]);
            assert_eq!(values(a.neg()), [-16_777_217, i32::MIN]);
            let near = Tensor::from_i32(&device, [2, 1], &[16_777_216, i32::MIN]).unwrap();
            assert_eq!(values(a.eq(&near)), [0, 1]);
            assert_eq!(a.eq(&near).unwrap().dtype(), DType::Bool);
            // Read as unsigned, -1 would be the largest number. Compared as signed, it is not.
            let u = Tensor::from_u32(&device, [1], &[u32::MAX]).unwrap();
            assert_eq!(values(b.lt(&u)), [1, 1, 1]);
            assert!(a.div(&a).is_err());
        }
    }

    #[test]
    fn parts_are_written_and_the_rest_stays() {
        let device = test_device().unwrap();
        let x = Tensor::from_f32(&device, [3, 4], &[0.0; 12], DType::F32).unwrap();
        let column = Tensor::from_i32(&device, [2, 1], &[5, 6]).unwrap();
        x.every(0, 0, 2, 2).unwrap().every(1, 1, 2, 2).unwrap().assign(&column).unwrap();
        assert_eq!(x.to_vec().unwrap(), [0.0, 5.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 0.0, 6.0]);
        // Values in the same memory are read before they are overwritten.
        let row = Tensor::from_i32(&device, [4], &[1, 2, 3, 4]).unwrap();
        row.every(0, 1, 1, 3).unwrap().assign(&row.every(0, 0, 1, 3).unwrap()).unwrap();
        assert_eq!(row.to_u32().unwrap(), [1, 1, 2, 3]);
        assert!(row.expand([2, 4]).unwrap().assign(&row).is_err());
        assert!(x.every(1, 2, 2, 2).is_err() && x.every(1, 3, 2, 1).is_ok());
    }
}
