//! Context objects.

use crate::answer::Room;
use crate::cl;
use crate::cl::{Code, Result};
use crate::device::{Device, platform};
use crate::platform::of_type;
use crate::raw::{ContextNotify, Handle, In, Notify};
use crate::registry::{self, Object, Tag};
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// Devices that share memory objects, programs and events.
pub struct Context {
    tag: Tag,
    /// Its devices, without duplicates.
    pub devices: Vec<Arc<Device>>,
    properties: Vec<usize>,
    notify: (ContextNotify, usize),
    /// Destructor callbacks, called in reverse order of registration.
    destructors: Mutex<Vec<(Notify, usize)>>,
}

impl Object for Context {
    const INVALID: Code = cl::INVALID_CONTEXT;
    const NAME: &'static str = "context";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let list = std::mem::take(self.destructors.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (function, data) in list.into_iter().rev() {
            if let Some(function) = function {
                function(self.tag.handle(), data);
            }
        }
    }
}

impl Context {
    /// Reports an asynchronous error through the context's notification callback.
    pub fn tell(&self, what: &str) {
        if let (Some(function), data) = self.notify {
            let text = CString::new(what.replace('\0', " ")).unwrap_or_default();
            function(text.as_ptr(), std::ptr::null(), 0, data);
        }
    }
    /// Returns its handle.
    pub fn handle(&self) -> Handle {
        self.tag.handle()
    }
    /// Returns the device with this handle.
    ///
    /// # Errors
    /// `CL_INVALID_DEVICE` if it does not belong to the context.
    pub fn device(&self, handle: Handle) -> Result<Arc<Device>> {
        self.devices.iter().find(|d| d.handle() == handle).cloned().ok_or(cl::INVALID_DEVICE)
    }
    /// Returns the devices in a call's list; all devices of the context if the list is empty.
    ///
    /// # Errors
    /// `CL_INVALID_VALUE` if count and list contradict each other, `CL_INVALID_DEVICE` for a device of another context.
    pub fn listed(&self, count: u32, list: In<Handle>) -> Result<Vec<Arc<Device>>> {
        if (count == 0) != list.is_null() {
            return Err(cl::INVALID_VALUE);
        }
        if count == 0 {
            return Ok(self.devices.clone());
        }
        list.list(count as usize).into_iter().map(|handle| self.device(handle)).collect()
    }
}

fn properties(list: In<usize>) -> Result<Vec<usize>> {
    let mut out = Vec::new();
    let mut seen = Vec::new();
    for (name, value) in list.pairs() {
        match name as u64 {
            _ if seen.contains(&name) => return Err(cl::INVALID_PROPERTY),
            cl::CONTEXT_PLATFORM if Handle(value) == platform() => {}
            cl::CONTEXT_PLATFORM => return Err(cl::INVALID_PLATFORM),
            cl::CONTEXT_INTEROP_USER_SYNC if value <= 1 => {}
            _ => return Err(cl::INVALID_PROPERTY),
        }
        seen.push(name);
        out.extend([name, value]);
    }
    if !list.is_null() {
        out.push(0);
    }
    Ok(out)
}

fn create(
    properties: Vec<usize>,
    devices: &[Handle],
    function: ContextNotify,
    data: usize,
) -> Result<Handle> {
    if function.is_none() && data != 0 {
        return Err(cl::INVALID_VALUE);
    }
    let mut own: Vec<Arc<Device>> = Vec::new();
    for device in registry::all::<Device>(devices)? {
        if !own.iter().any(|d| d.handle() == device.handle()) {
            own.push(device);
        }
    }
    let notify = (function, data);
    let context =
        Context { tag: Tag::default(), devices: own, properties, notify, destructors: Mutex::default() };
    Ok(registry::publish(&Arc::new(context)))
}

/// `clCreateContext`.
pub fn create_context(
    list: In<usize>,
    count: u32,
    devices: In<Handle>,
    function: ContextNotify,
    data: usize,
) -> Result<Handle> {
    let properties = properties(list)?;
    if count == 0 || devices.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    create(properties, &devices.list(count as usize), function, data)
}

/// `clCreateContextFromType`.
pub fn create_context_from_type(
    list: In<usize>,
    types: u64,
    function: ContextNotify,
    data: usize,
) -> Result<Handle> {
    create(properties(list)?, &of_type(types)?, function, data)
}

/// `clGetContextInfo`.
pub fn get_context_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let context = registry::get::<Context>(handle)?;
    match name {
        cl::CONTEXT_REFERENCE_COUNT => room.give(&registry::references(&*context)),
        cl::CONTEXT_NUM_DEVICES => room.give(&(context.devices.len() as u32)),
        cl::CONTEXT_DEVICES => {
            let handles: Vec<Handle> = context.devices.iter().map(|d| d.handle()).collect();
            room.give(&handles[..])
        }
        cl::CONTEXT_PROPERTIES => room.give(&context.properties[..]),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// `clSetContextDestructorCallback`.
pub fn set_context_destructor_callback(handle: Handle, function: Notify, data: usize) -> Result<()> {
    let context = registry::get::<Context>(handle)?;
    if function.is_none() {
        return Err(cl::INVALID_VALUE);
    }
    context.destructors.lock().unwrap_or_else(PoisonError::into_inner).push((function, data));
    Ok(())
}
