//! Operands of lanes, and functions over all lanes of a range.

/// An operand: one value per lane, or one for all lanes.
#[derive(Debug, Clone, Copy)]
pub enum LaneOperand<'a, T> {
    /// One value for each lane of the result.
    Lanes(&'a [T]),
    /// The same value in each lane.
    One(T),
}

// The loops below use indices: an iterator adapter that is not inlined would be compiled without the vector instructions that `Arch::dispatch`
// enables.

#[inline(always)]
pub(super) fn map<A: Copy, T: Copy>(out: &mut [T], a: LaneOperand<'_, A>, f: impl Fn(A) -> T) {
    let n = out.len();
    match a {
        LaneOperand::Lanes(a) => {
            let a = &a[..n];
            for i in 0..n {
                out[i] = f(a[i]);
            }
        }
        LaneOperand::One(x) => out.fill(f(x)),
    }
}

#[inline(always)]
pub(super) fn zip<A: Copy, T: Copy>(
    out: &mut [T],
    a: LaneOperand<'_, A>,
    b: LaneOperand<'_, A>,
    f: impl Fn(A, A) -> T,
) {
    use LaneOperand::{Lanes, One};
    let n = out.len();
    match (a, b) {
        (Lanes(a), Lanes(b)) => {
            let (a, b) = (&a[..n], &b[..n]);
            for i in 0..n {
                out[i] = f(a[i], b[i]);
            }
        }
        (Lanes(a), One(y)) => {
            let a = &a[..n];
            for i in 0..n {
                out[i] = f(a[i], y);
            }
        }
        (One(x), Lanes(b)) => {
            let b = &b[..n];
            for i in 0..n {
                out[i] = f(x, b[i]);
            }
        }
        (One(x), One(y)) => out.fill(f(x, y)),
    }
}

#[inline(always)]
pub(super) fn zip3<A: Copy, T: Copy>(out: &mut [T], s: [LaneOperand<'_, A>; 3], f: impl Fn(A, A, A) -> T) {
    use LaneOperand::{Lanes, One};
    match s {
        [Lanes(a), Lanes(b), Lanes(c)] => {
            let n = out.len();
            let (a, b, c) = (&a[..n], &b[..n], &c[..n]);
            for i in 0..n {
                out[i] = f(a[i], b[i], c[i]);
            }
        }
        [One(x), b, c] => zip(
            out,
            b,
            c,
            #[inline(always)]
            |y, z| f(x, y, z),
        ),
        [a, One(y), c] => zip(
            out,
            a,
            c,
            #[inline(always)]
            |x, z| f(x, y, z),
        ),
        [a, b, One(z)] => zip(
            out,
            a,
            b,
            #[inline(always)]
            |x, y| f(x, y, z),
        ),
    }
}
