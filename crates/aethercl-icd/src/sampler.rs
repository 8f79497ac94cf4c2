//! Samplers.

use crate::answer::Room;
use crate::cl;
use crate::cl::{Code, Result};
use crate::context::Context;
use crate::raw::{Handle, In};
use crate::registry::{self, Object, Tag};
use aethercl::image::Sampler as Bits;
use std::sync::Arc;

/// A sampler object: describes image reads in kernels.
pub struct Sampler {
    tag: Tag,
    /// The context that it belongs to.
    pub context: Arc<Context>,
    /// The settings below, encoded as the bits that kernels receive.
    pub bits: Bits,
    normalized: bool,
    addressing: u32,
    filter: u32,
    properties: Vec<u64>,
}

impl Object for Sampler {
    const INVALID: Code = cl::INVALID_SAMPLER;
    const NAME: &'static str = "sampler";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

fn create(
    context: Handle,
    normalized: bool,
    addressing: u32,
    filter: u32,
    properties: Vec<u64>,
) -> Result<Handle> {
    let context = registry::get::<Context>(context)?;
    let address = match addressing {
        cl::ADDRESS_NONE => 0,
        cl::ADDRESS_CLAMP_TO_EDGE => Bits::EDGE,
        cl::ADDRESS_CLAMP => Bits::BORDER,
        // The standard defines these two modes only for normalized coordinates.
        cl::ADDRESS_REPEAT if normalized => Bits::REPEAT,
        cl::ADDRESS_MIRRORED_REPEAT if normalized => Bits::MIRROR,
        _ => return Err(cl::INVALID_VALUE),
    };
    let filtered = match filter {
        cl::FILTER_NEAREST => Bits::NEAREST,
        cl::FILTER_LINEAR => Bits::LINEAR,
        _ => return Err(cl::INVALID_VALUE),
    };
    let bits = Bits(address | filtered | if normalized { Bits::NORMALIZED } else { 0 });
    let sampler = Sampler { tag: Tag::default(), context, bits, normalized, addressing, filter, properties };
    Ok(registry::publish(&Arc::new(sampler)))
}

/// `clCreateSampler`.
pub fn create_sampler(context: Handle, normalized: u32, addressing: u32, filter: u32) -> Result<Handle> {
    create(context, normalized != 0, addressing, filter, Vec::new())
}

/// `clCreateSamplerWithProperties`; defaults are normalized, clamped and nearest.
pub fn create_sampler_with_properties(context: Handle, list: In<u64>) -> Result<Handle> {
    let mut normalized = true;
    let mut addressing = cl::ADDRESS_CLAMP;
    let mut filter = cl::FILTER_NEAREST;
    let pairs = list.pairs();
    for (i, (name, value)) in pairs.iter().enumerate() {
        let value = u32::try_from(*value).map_err(|_| cl::INVALID_VALUE)?;
        if pairs[..i].iter().any(|(before, _)| before == name) {
            return Err(cl::INVALID_VALUE);
        }
        match u32::try_from(*name) {
            Ok(cl::SAMPLER_NORMALIZED_COORDS) if value <= 1 => normalized = value != 0,
            Ok(cl::SAMPLER_ADDRESSING_MODE) => addressing = value,
            Ok(cl::SAMPLER_FILTER_MODE) => filter = value,
            _ => return Err(cl::INVALID_VALUE),
        }
    }
    let mut properties: Vec<u64> = pairs.iter().flat_map(|(name, value)| [*name, *value]).collect();
    if !list.is_null() {
        properties.push(0);
    }
    create(context, normalized, addressing, filter, properties)
}

/// `clGetSamplerInfo`.
pub fn get_sampler_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let sampler = registry::get::<Sampler>(handle)?;
    match name {
        cl::SAMPLER_REFERENCE_COUNT => room.give(&registry::references(&*sampler)),
        cl::SAMPLER_CONTEXT => room.give(&sampler.context.handle()),
        cl::SAMPLER_NORMALIZED_COORDS => room.give(&sampler.normalized),
        cl::SAMPLER_ADDRESSING_MODE => room.give(&sampler.addressing),
        cl::SAMPLER_FILTER_MODE => room.give(&sampler.filter),
        cl::SAMPLER_PROPERTIES => room.give(&sampler.properties[..]),
        _ => Err(cl::INVALID_VALUE),
    }
}
