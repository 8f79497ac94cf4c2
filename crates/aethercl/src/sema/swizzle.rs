//! Names of a vector's lanes.

use crate::hir::{Place, PlaceKind};
use crate::source::Span;
use crate::types::Type;

/// Returns the lanes that `.name` selects on a vector of `lanes`: `xyzw`, `rgba`, `s0…sf`, `lo`, `hi`, `even`, `odd`.
///
/// # Errors
/// The problem with the name, as the start of a message.
pub(super) fn lanes_named(name: &str, lanes: u8) -> Result<Vec<u8>, &'static str> {
    // The upper half of three lanes has a fourth lane with an undefined value: the third lane replaces it.
    let half = if lanes == 3 { 2 } else { lanes / 2 };
    let within = |list: Vec<u8>| Ok(list.into_iter().map(|l| l.min(lanes - 1)).collect());
    match name {
        "lo" => return within((0..half).collect()),
        "hi" => return within((half..2 * half).collect()),
        "even" => return within((0..half).map(|i| 2 * i).collect()),
        "odd" => return within((0..half).map(|i| 2 * i + 1).collect()),
        _ => {}
    }
    let list: Option<Vec<u8>> = match name.strip_prefix(['s', 'S']) {
        Some(digits) => digits.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect(),
        None => ["xyzw", "rgba"].iter().find_map(|set| name.chars().map(|c| position(set, c)).collect()),
    };
    let list = list.ok_or("invalid component name")?;
    if list.iter().any(|l| *l >= lanes) {
        return Err("component out of range in");
    }
    match list.len() {
        1 | 2 | 3 | 4 | 8 | 16 => Ok(list),
        _ => Err("invalid number of components in"),
    }
}

fn position(set: &str, c: char) -> Option<u8> {
    set.find(c).map(|i| i as u8)
}

/// Returns lanes of a place; lanes of lanes are lanes of the whole vector.
pub(super) fn lanes_of_place(place: Place, list: &[u8], ty: Type, span: Span) -> Place {
    let space = place.space;
    let (base, lanes) = match place.kind {
        PlaceKind::Lanes { base, lanes } => {
            let lanes = list.iter().filter_map(|l| lanes.get(usize::from(*l))).copied().collect();
            (base, lanes)
        }
        kind => (Box::new(Place { kind, ..place }), list.to_vec()),
    };
    Place { kind: PlaceKind::Lanes { base, lanes }, ty, space, span }
}
