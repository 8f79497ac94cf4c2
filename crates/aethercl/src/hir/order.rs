//! Memory order and scope of an atomic operation or a fence: section 6.15.12 of OpenCL C 3.0.

use super::{Expr, ExprKind};
use crate::source::Span;
use crate::types::INT;

/// The work-items for which an atomic operation or a fence orders memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryScope {
    /// The work-item alone.
    Item,
    /// Its sub-group.
    SubGroup,
    /// Its work-group.
    Group,
    /// All work-items of the launch.
    Device,
}

/// The ordering of an atomic operation or a fence. Packed: it is the last operand of these functions, an integer constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryOrder(u16);

/// The constants of `memory_order`, those of C11.
const ACQUIRE: u16 = 2;
const RELEASE: u16 = 3;
const ACQ_REL: u16 = 4;
const SEQ_CST: u16 = 5;

impl MemoryOrder {
    /// `memory_order_relaxed` at device scope: the order of OpenCL C 1.x functions.
    pub const RELAXED: MemoryOrder = MemoryOrder::new(0, 0, MemoryScope::Device);
    /// A fence that acquires and releases.
    pub const FULL: MemoryOrder = MemoryOrder::new(ACQ_REL, 0, MemoryScope::Device);
    /// A fence that acquires.
    pub const ACQUIRE: MemoryOrder = MemoryOrder::new(ACQUIRE, 0, MemoryScope::Device);
    /// A fence that releases.
    pub const RELEASE: MemoryOrder = MemoryOrder::new(RELEASE, 0, MemoryScope::Device);

    const fn new(order: u16, failure: u16, scope: MemoryScope) -> MemoryOrder {
        MemoryOrder(order | failure << 3 | (scope as u16) << 6)
    }

    /// Returns order, failure order and scope of a call's arguments. Without an order it is the strongest, without a scope the device's; a value that
    /// is not constant counts as the strongest.
    pub fn of(order: Option<&Expr>, failure: Option<&Expr>, scope: Option<&Expr>) -> MemoryOrder {
        let value = |e: Option<&Expr>| match e.map(|e| &e.kind) {
            Some(ExprKind::Int(n)) => Some(*n as u16 & 7),
            _ => None,
        };
        let scope = match value(scope) {
            Some(0) => MemoryScope::Item,
            Some(1) => MemoryScope::Group,
            Some(4) => MemoryScope::SubGroup,
            _ => MemoryScope::Device,
        };
        let order = value(order).unwrap_or(SEQ_CST);
        MemoryOrder::new(order, value(failure).unwrap_or(order), scope)
    }

    /// Returns the same order with another scope.
    pub fn within(self, scope: MemoryScope) -> MemoryOrder {
        MemoryOrder::new(self.order(), self.0 >> 3 & 7, scope)
    }

    /// Converts it to the operand of a function.
    pub fn expr(self, span: Span) -> Expr {
        Expr { kind: ExprKind::Int(u64::from(self.0)), ty: INT, span }
    }

    /// Converts the operand of a function.
    pub fn from_expr(e: Option<&Expr>) -> MemoryOrder {
        match e.map(|e| &e.kind) {
            Some(ExprKind::Int(bits)) => MemoryOrder(*bits as u16),
            _ => MemoryOrder::RELAXED,
        }
    }

    fn order(self) -> u16 {
        self.0 & 7
    }

    /// Returns true if reads with it see everything written before the write that they read.
    pub fn acquires(self) -> bool {
        matches!(self.order(), ACQUIRE | ACQ_REL | SEQ_CST)
    }

    /// Returns true if those that acquire it see everything written before it.
    pub fn releases(self) -> bool {
        matches!(self.order(), RELEASE | ACQ_REL | SEQ_CST)
    }

    /// Returns true if it acquires or releases.
    pub fn orders(self) -> bool {
        self.acquires() || self.releases()
    }

    /// Returns true if a failed comparison acquires.
    pub fn acquires_on_failure(self) -> bool {
        matches!(self.0 >> 3 & 7, ACQUIRE | ACQ_REL | SEQ_CST)
    }

    /// Returns the scope: the work-items that it orders.
    pub fn scope(self) -> MemoryScope {
        match self.0 >> 6 & 3 {
            0 => MemoryScope::Item,
            1 => MemoryScope::SubGroup,
            2 => MemoryScope::Group,
            _ => MemoryScope::Device,
        }
    }
}
