//! Program objects: create, build, compile, link, query.

mod unit;

use unit::{Kind, Text, Unit};

use crate::answer::Room;
use crate::cl;
use crate::cl::{Code, Result};
use crate::context::Context;
use crate::device::Device;
use crate::raw::{Handle, Host, In, Notify, Out};
use crate::registry::{self, Object, Tag};
use aethercl::options::BuildOptions;
use aethercl::types::Space;
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A program.
pub struct Program {
    tag: Tag,
    /// The context that it belongs to.
    pub context: Arc<Context>,
    devices: Vec<Arc<Device>>,
    source: Option<String>,
    builds: Mutex<BTreeMap<Handle, Build>>,
    /// Number of kernel objects. The program cannot be rebuilt while kernel objects exist.
    pub kernels: AtomicUsize,
}

/// Build state of a program for one device.
#[derive(Clone, Default)]
pub struct Build {
    /// `CL_BUILD_…`.
    status: i32,
    options: String,
    log: String,
    unit: Option<Unit>,
    /// The compiled program, if it is executable.
    pub program: Option<Arc<aethercl::Program>>,
    /// Whether work-groups must divide the range evenly (`-cl-uniform-work-group-size`, and before 2.0).
    pub uniform: bool,
}

impl Object for Program {
    const INVALID: Code = cl::INVALID_PROGRAM;
    const NAME: &'static str = "program";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

impl Program {
    fn new(context: &Arc<Context>, devices: Vec<Arc<Device>>, source: Option<String>) -> Self {
        Self {
            tag: Tag::default(),
            context: Arc::clone(context),
            devices,
            source,
            builds: Mutex::default(),
            kernels: AtomicUsize::new(0),
        }
    }

    fn builds(&self) -> MutexGuard<'_, BTreeMap<Handle, Build>> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its build state for a device.
    pub fn build_on(&self, device: &Device) -> Build {
        self.builds().get(&device.handle()).cloned().unwrap_or_default()
    }

    /// Returns the executable of any device.
    ///
    /// # Errors
    /// `CL_INVALID_PROGRAM_EXECUTABLE` if no device has one.
    pub fn any(&self) -> Result<Arc<aethercl::Program>> {
        let builds = self.builds();
        builds.values().find_map(|b| b.program.clone()).ok_or(cl::INVALID_PROGRAM_EXECUTABLE)
    }

    /// Returns the devices that a call lists.
    fn listed(&self, count: u32, list: In<Handle>) -> Result<Vec<Arc<Device>>> {
        if (count == 0) != list.is_null() {
            return Err(cl::INVALID_VALUE);
        }
        let own = |handle: Handle| {
            self.devices.iter().find(|d| d.handle() == handle).cloned().ok_or(cl::INVALID_DEVICE)
        };
        match count {
            0 => Ok(self.devices.clone()),
            n => list.list(n as usize).into_iter().map(own).collect(),
        }
    }

    fn idle(&self) -> Result<()> {
        if self.kernels.load(Ordering::Relaxed) > 0 { Err(cl::INVALID_OPERATION) } else { Ok(()) }
    }
}

impl Unit {
    /// Builds it for a device.
    fn executable(mut self, device: &Device, options: &str) -> Build {
        let parsed = BuildOptions::parse(self.texts.first().map_or("", |t| &t.options)).unwrap_or_default();
        let uniform = parsed.version < 200 || options.contains("-cl-uniform-work-group-size");
        let base = Build { options: options.into(), uniform, ..Build::default() };
        match self.build(&device.target) {
            Ok(program) => Build {
                status: cl::BUILD_SUCCESS,
                log: program.hir().warnings.clone(),
                program: Some(Arc::new(program)),
                unit: Some(Self { kind: Kind::Executable, ..self }),
                ..base
            },
            Err(e) => Build { status: cl::BUILD_ERROR, log: e.log, ..base },
        }
    }
}

/// `clCreateProgramWithSource`.
pub fn create_program_with_source(
    context: Handle,
    count: u32,
    strings: In<In<c_char>>,
    lengths: In<usize>,
) -> Result<Handle> {
    let context = registry::get::<Context>(context)?;
    if count == 0 || strings.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    let lengths = lengths.list(count as usize);
    let mut source = String::new();
    for (i, string) in strings.list(count as usize).into_iter().enumerate() {
        match lengths.get(i) {
            _ if string.is_null() => return Err(cl::INVALID_VALUE),
            Some(bytes) if *bytes > 0 => source += string.text_of(*bytes).trim_end_matches('\0'),
            _ => source += &string.text().unwrap_or_default(),
        }
    }
    Ok(registry::publish(&Arc::new(Program::new(&context, context.devices.clone(), Some(source)))))
}

/// `clCreateProgramWithBinary`.
pub fn create_program_with_binary(
    context: Handle,
    count: u32,
    list: In<Handle>,
    lengths: In<usize>,
    binaries: In<In<u8>>,
    status: Out<i32>,
) -> Result<Handle> {
    let context = registry::get::<Context>(context)?;
    if count == 0 || list.is_null() || lengths.is_null() || binaries.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    let devices = context.listed(count, list)?;
    let lengths = lengths.list(count as usize);
    let binaries = binaries.list(count as usize);
    let mut codes = vec![cl::SUCCESS; count as usize];
    let mut builds = BTreeMap::new();
    for (i, device) in devices.iter().enumerate() {
        if lengths[i] == 0 || binaries[i].is_null() {
            codes[i] = cl::INVALID_VALUE;
        } else if let Some(unit) = Unit::from_binary(&binaries[i].list(lengths[i])) {
            builds.insert(
                device.handle(),
                Build { unit: Some(unit), status: cl::BUILD_NONE, ..Build::default() },
            );
        } else {
            codes[i] = cl::INVALID_BINARY;
        }
    }
    status.set_list(&codes);
    if let Some(code) = codes.iter().find(|c| **c != cl::SUCCESS) {
        return Err(*code);
    }
    let program = Program { builds: Mutex::new(builds), ..Program::new(&context, devices, None) };
    Ok(registry::publish(&Arc::new(program)))
}

/// `clCreateProgramWithBuiltInKernels`: no built-in kernels exist.
pub fn create_program_with_built_in_kernels(
    context: Handle,
    count: u32,
    list: In<Handle>,
    _names: In<c_char>,
) -> Result<Handle> {
    let context = registry::get::<Context>(context)?;
    if count == 0 || list.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    context.listed(count, list)?;
    Err(cl::INVALID_VALUE)
}

/// `clCreateProgramWithIL`: no intermediate language is supported.
pub fn create_program_with_il(context: Handle, _il: In<u8>, _length: usize) -> Result<Handle> {
    registry::get::<Context>(context)?;
    Err(cl::INVALID_OPERATION)
}

/// Checks build options; unknown ones are an error.
fn options(text: In<c_char>, otherwise: Code) -> Result<String> {
    let text = text.text().unwrap_or_default();
    BuildOptions::parse(&text).map(|_| text).map_err(|_| otherwise)
}

fn call_notify(function: Notify, handle: Handle, data: usize) {
    if let Some(function) = function {
        function(handle, data);
    }
}

/// `clBuildProgram`.
pub fn build_program(
    handle: Handle,
    count: u32,
    list: In<Handle>,
    text: In<c_char>,
    function: Notify,
    data: usize,
) -> Result<()> {
    let program = registry::get::<Program>(handle)?;
    if function.is_none() && data != 0 {
        return Err(cl::INVALID_VALUE);
    }
    let devices = program.listed(count, list)?;
    let options = options(text, cl::INVALID_BUILD_OPTIONS)?;
    program.idle()?;
    let mut failed = false;
    for device in devices {
        let unit = match (&program.source, program.build_on(&device).unit) {
            (Some(source), _) => {
                let text = Text { text: source.clone(), options: options.clone(), headers: Vec::new() };
                Unit { kind: Kind::Executable, texts: vec![text], options: options.clone() }
            }
            (None, Some(unit)) if unit.kind == Kind::Executable => unit,
            _ => return Err(cl::INVALID_BINARY),
        };
        let kept = program.source.is_none().then(|| unit.clone());
        let mut build = unit.executable(&device, &options);
        failed |= build.status == cl::BUILD_ERROR;
        // A program created from a binary is rebuilt from the sources in the binary.
        build.unit = build.unit.or(kept);
        program.builds().insert(device.handle(), build);
    }
    call_notify(function, handle, data);
    if failed { Err(cl::BUILD_PROGRAM_FAILURE) } else { Ok(()) }
}

/// `clCompileProgram`.
pub fn compile_program(
    handle: Handle,
    count: u32,
    list: In<Handle>,
    text: In<c_char>,
    headers: u32,
    programs: In<Handle>,
    names: In<In<c_char>>,
    function: Notify,
    data: usize,
) -> Result<()> {
    let program = registry::get::<Program>(handle)?;
    let fits = (headers == 0) == programs.is_null() && (headers == 0) == names.is_null();
    if !fits || (function.is_none() && data != 0) {
        return Err(cl::INVALID_VALUE);
    }
    let devices = program.listed(count, list)?;
    let options = options(text, cl::INVALID_COMPILER_OPTIONS)?;
    program.idle()?;
    let source = program.source.clone().ok_or(cl::INVALID_OPERATION)?;
    let mut given = Vec::new();
    for (header, name) in programs.list(headers as usize).into_iter().zip(names.list(headers as usize)) {
        let header = registry::get::<Program>(header)?;
        let name = name.text().ok_or(cl::INVALID_VALUE)?;
        given.push((name, header.source.clone().ok_or(cl::INVALID_OPERATION)?));
    }
    let text = Text { text: source, options: options.clone(), headers: given };
    let unit = Unit { kind: Kind::Object, texts: vec![text], options: options.clone() };
    let mut failed = false;
    for device in devices {
        let base = Build { options: options.clone(), ..Build::default() };
        let mut unit = unit.clone();
        let build = match unit.compile(&device.target) {
            Ok(log) => Build { status: cl::BUILD_SUCCESS, log, unit: Some(unit), ..base },
            Err(e) => Build { status: cl::BUILD_ERROR, log: e.log, ..base },
        };
        failed |= build.status == cl::BUILD_ERROR;
        program.builds().insert(device.handle(), build);
    }
    call_notify(function, handle, data);
    if failed { Err(cl::COMPILE_PROGRAM_FAILURE) } else { Ok(()) }
}

/// Parses link options; returns whether a library is created.
fn link_options(text: &str) -> Result<bool> {
    let mut library = false;
    for word in text.split_whitespace() {
        match word {
            "-create-library" => library = true,
            "-enable-link-options" => {}
            _ if word.starts_with("-cl-") && BuildOptions::parse(word).is_ok() => {}
            _ => return Err(cl::INVALID_LINKER_OPTIONS),
        }
    }
    Ok(library)
}

/// `clLinkProgram`: returns the program and the result of the link.
pub fn link_program(
    context: Handle,
    count: u32,
    list: In<Handle>,
    text: In<c_char>,
    inputs: u32,
    programs: In<Handle>,
    function: Notify,
    data: usize,
) -> Result<(Handle, i32)> {
    let context = registry::get::<Context>(context)?;
    if inputs == 0 || programs.is_null() || (function.is_none() && data != 0) {
        return Err(cl::INVALID_VALUE);
    }
    let devices = context.listed(count, list)?;
    let programs = registry::all::<Program>(&programs.list(inputs as usize))?;
    let options = text.text().unwrap_or_default();
    let library = link_options(&options)?;
    let program = Arc::new(Program::new(&context, devices.clone(), None));
    let mut failed = false;
    for device in devices {
        let units: Vec<Unit> = programs.iter().filter_map(|p| p.build_on(&device).unit).collect();
        if units.len() < programs.len() || units.iter().any(|u| u.kind == Kind::Executable) {
            return Err(cl::INVALID_OPERATION);
        }
        let texts = units.into_iter().flat_map(|u| u.texts).collect();
        let kind = if library { Kind::Library } else { Kind::Executable };
        let unit = Unit { kind, texts, options: options.clone() };
        let build = if library {
            Build {
                status: cl::BUILD_SUCCESS,
                options: options.clone(),
                unit: Some(unit),
                ..Build::default()
            }
        } else {
            unit.executable(&device, &options)
        };
        failed |= build.status == cl::BUILD_ERROR;
        program.builds().insert(device.handle(), build);
    }
    let handle = registry::publish(&program);
    call_notify(function, handle, data);
    // A failed link still returns a program object, which contains the log.
    Ok((handle, if failed { cl::LINK_PROGRAM_FAILURE } else { cl::SUCCESS }))
}

/// `clGetProgramInfo`.
pub fn get_program_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let program = registry::get::<Program>(handle)?;
    let binaries = || -> Vec<Vec<u8>> {
        let unit = |d: &Arc<Device>| program.build_on(d).unit.map(|u| u.binary()).unwrap_or_default();
        program.devices.iter().map(unit).collect()
    };
    match name {
        cl::PROGRAM_REFERENCE_COUNT => room.give(&registry::references(&*program)),
        cl::PROGRAM_CONTEXT => room.give(&program.context.handle()),
        cl::PROGRAM_NUM_DEVICES => room.give(&(program.devices.len() as u32)),
        cl::PROGRAM_DEVICES => room.give(&program.devices.iter().map(|d| d.handle()).collect::<Vec<_>>()[..]),
        cl::PROGRAM_SOURCE => room.give(program.source.as_deref().unwrap_or("")),
        cl::PROGRAM_BINARY_SIZES => room.give(&binaries().iter().map(Vec::len).collect::<Vec<_>>()[..]),
        cl::PROGRAM_BINARIES => give_binaries(&binaries(), room),
        cl::PROGRAM_NUM_KERNELS => room.give(&program.any()?.kernels().len()),
        cl::PROGRAM_KERNEL_NAMES => {
            let built = program.any()?;
            room.give(built.kernels().iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join(";").as_str())
        }
        cl::PROGRAM_IL => room.give(&[0u8; 0][..]),
        cl::PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT | cl::PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT => room.give(&false),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// Copies binaries to the caller's array of addresses, one per binary; a null address skips its binary.
fn give_binaries(binaries: &[Vec<u8>], room: Room) -> Result<()> {
    let bytes = binaries.len() * size_of::<usize>();
    if !room.value.is_null() {
        if room.size < bytes {
            return Err(cl::INVALID_VALUE);
        }
        for (address, binary) in room.value.addresses(binaries.len()).into_iter().zip(binaries) {
            if let Ok(host) = Host::at(address) {
                host.write(binary);
            }
        }
    }
    room.size_ret.set(bytes);
    Ok(())
}

/// `clGetProgramBuildInfo`.
pub fn get_program_build_info(handle: Handle, device: Handle, name: u32, room: Room) -> Result<()> {
    let program = registry::get::<Program>(handle)?;
    let device = program.devices.iter().find(|d| d.handle() == device).ok_or(cl::INVALID_DEVICE)?;
    let known = program.builds().contains_key(&device.handle());
    let build = program.build_on(device);
    match name {
        cl::PROGRAM_BUILD_STATUS => room.give(&if known { build.status } else { cl::BUILD_NONE }),
        cl::PROGRAM_BUILD_OPTIONS => room.give(build.options.as_str()),
        cl::PROGRAM_BUILD_LOG => room.give(build.log.as_str()),
        cl::PROGRAM_BINARY_TYPE => room.give(&match build.unit.map(|u| u.kind) {
            None => cl::PROGRAM_BINARY_TYPE_NONE,
            Some(Kind::Object) => cl::PROGRAM_BINARY_TYPE_COMPILED_OBJECT,
            Some(Kind::Library) => cl::PROGRAM_BINARY_TYPE_LIBRARY,
            Some(Kind::Executable) => cl::PROGRAM_BINARY_TYPE_EXECUTABLE,
        }),
        cl::PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE => {
            let globals = build.program.iter().flat_map(|p| p.hir().globals.clone());
            room.give(&globals.filter(|g| g.space == Space::Global).map(|g| g.data.len()).sum::<usize>())
        }
        _ => Err(cl::INVALID_VALUE),
    }
}

/// `clSetProgramReleaseCallback`: supported only for programs with global destructors.
pub fn set_program_release_callback(handle: Handle, _function: Notify, _data: usize) -> Result<()> {
    registry::get::<Program>(handle)?;
    Err(cl::INVALID_OPERATION)
}

/// `clSetProgramSpecializationConstant`: supported only for programs in an intermediate language.
pub fn set_program_specialization_constant(
    handle: Handle,
    _id: u32,
    _size: usize,
    _value: In<u8>,
) -> Result<()> {
    registry::get::<Program>(handle)?;
    Err(cl::INVALID_OPERATION)
}
