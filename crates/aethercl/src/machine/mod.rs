//! The machine.
pub mod registers;
mod engines; mod fault; mod narrate; mod packet; mod ring; mod trace;
