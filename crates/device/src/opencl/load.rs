//! Finds OpenCL at run time: the system's ICD loader or, without one, the vendors' libraries.

use super::result::usable;
use super::sys::{Int, Ptr, Table, Uint};
use crate::{Error, Result, Settings};
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};

/// One platform and its function table.
#[derive(Clone, Copy)]
pub struct Platform {
    pub id: Ptr,
    pub table: Table,
}

// SAFETY: platform ids are opaque and usable from every thread (OpenCL 1.2 appendix A.2).
unsafe impl Send for Platform {}
// SAFETY: same as above; the table holds plain function pointers.
unsafe impl Sync for Platform {}

/// Search report for `netcl doctor`: the places searched and the libraries found.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct LoaderReport {
    /// The ICD loader that was opened.
    pub loader: Option<String>,
    /// Loaders that failed to open, with the reason.
    pub tried: Vec<String>,
    /// Folders searched for `.icd` files.
    pub icd_folders: Vec<PathBuf>,
    /// `.icd` files, the library that each names, and the error if it could not be opened.
    pub icds: Vec<(PathBuf, String, Option<String>)>,
}

const LOADERS: [&str; 4] =
    ["libOpenCL.so.1", "libOpenCL.so", "OpenCL.dll", "/System/Library/Frameworks/OpenCL.framework/OpenCL"];

/// Returns the platforms of this system, in the loader's order.
pub fn platforms(settings: &Settings) -> Result<Vec<Platform>> {
    let mut tried = Vec::new();
    if let Some((_, table)) = open_loader(settings, &mut tried) {
        return platforms_of(&table);
    }
    if let (Some(path), false) = (&settings.opencl_library, settings.no_loader) {
        return Err(Error::device(format!(
            "NETCL_OPENCL_LIBRARY names {}, which is not an OpenCL library ({}); unset it to search for one",
            path.display(),
            tried.join("; ")
        )));
    }
    let mut found = Vec::new();
    for (file, library) in icd_files(&icd_folders(settings)) {
        match open_vendor(&library) {
            Ok(platforms) => found.extend(platforms),
            Err(why) => tried.push(format!("{library} (named by {}): {why}", file.display())),
        }
    }
    if found.is_empty() {
        return Err(Error::device(format!(
            "no OpenCL library found: {}. Install an OpenCL driver and the ICD loader; on Debian and Ubuntu: apt-get install ocl-icd-libopencl1 \
             pocl-opencl-icd. `netcl doctor` gives details",
            if tried.is_empty() { "nothing to try".into() } else { tried.join("; ") }
        )));
    }
    Ok(found)
}

/// Reports the installed libraries; never fails.
pub fn report(settings: &Settings) -> LoaderReport {
    let mut out = LoaderReport { icd_folders: icd_folders(settings), ..Default::default() };
    out.loader = open_loader(settings, &mut out.tried).map(|(name, _)| name);
    for (file, library) in icd_files(&out.icd_folders) {
        let error = open(&library).err();
        out.icds.push((file, library, error));
    }
    out
}

fn open_loader(settings: &Settings, tried: &mut Vec<String>) -> Option<(String, Table)> {
    if settings.no_loader {
        tried.push("the ICD loader is skipped (NETCL_NO_LOADER)".into());
        return None;
    }
    let named = settings.opencl_library.as_ref().map(|p| p.display().to_string());
    let names: Vec<String> = named.map_or_else(|| LOADERS.map(Into::into).to_vec(), |n| vec![n]);
    for name in names {
        match open(&name) {
            Ok(table) if usable(&table) => return Some((name, table)),
            Ok(_) => tried.push(format!("{name}: the functions of OpenCL 1.2 are missing")),
            Err(why) => tried.push(why),
        }
    }
    None
}

/// Returns the system loader's message without repeating the library name. The error itself only names the failed call.
fn reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => {
            let text = source.to_string();
            text.split_once(": ").map_or(text.clone(), |(_, why)| why.to_owned())
        }
        None => error.to_string(),
    }
}

/// Opens a library for the lifetime of the process. The driver's threads make unloading unsafe.
fn open(name: &str) -> Result<Table, String> {
    // SAFETY: loading runs the library's constructors, the same as in any OpenCL program.
    let library = unsafe { libloading::Library::new(name) }.map_err(|e| format!("{name}: {}", reason(&e)))?;
    let library = std::mem::ManuallyDrop::new(library);
    Ok(Table::from_names(|symbol| {
        // SAFETY: only the address is taken; `Table` gives it the specification's signature.
        let found =
            unsafe { library.get::<*const c_void>(symbol.as_bytes()).ok().and_then(|s| s.try_as_raw_ptr()) };
        found.map_or(std::ptr::null(), <*mut c_void>::cast_const)
    }))
}

fn platforms_of(table: &Table) -> Result<Vec<Platform>> {
    let Some(get) = table.clGetPlatformIDs else { return Ok(Vec::new()) };
    Ok(ids(|n, out, count| {
        // SAFETY: the pointers are valid for `n` ids or null with `n` 0.
        unsafe { get(n, out, count) }
    })
    .into_iter()
    .map(|id| Platform { id, table: *table })
    .collect())
}

/// Enumerates ids with two calls. A failing call returns an empty list (-1001: no platform, -1: no device).
pub fn ids(mut get: impl FnMut(Uint, *mut Ptr, *mut Uint) -> Int) -> Vec<Ptr> {
    let mut count = 0;
    if get(0, std::ptr::null_mut(), &raw mut count) != 0 || count == 0 {
        return Vec::new();
    }
    let mut out = vec![std::ptr::null_mut(); count as usize];
    if get(count, out.as_mut_ptr(), std::ptr::null_mut()) != 0 {
        return Vec::new();
    }
    out
}

/// Loads a vendor library and takes the dispatch table of its platforms (cl_khr_icd).
fn open_vendor(name: &str) -> Result<Vec<Platform>, String> {
    type GetPlatforms = unsafe extern "C" fn(Uint, *mut Ptr, *mut Uint) -> Int;
    let table = open(name)?;
    let address =
        table.clGetExtensionFunctionAddress.ok_or("does not have a clGetExtensionFunctionAddress")?;
    let symbol = CString::new("clIcdGetPlatformIDsKHR").map_err(|e| e.to_string())?;
    // SAFETY: a NUL-terminated name; the driver answers with null or the function of cl_khr_icd.
    let get: Option<GetPlatforms> = unsafe { std::mem::transmute(address(symbol.as_ptr())) };
    let get = get.ok_or("does not support cl_khr_icd")?;
    // SAFETY: `ids` passes valid pointers.
    let platforms = ids(|n, out, count| unsafe { get(n, out, count) });
    Ok(platforms
        .into_iter()
        .map(|id| {
            // SAFETY: cl_khr_icd: every object of such a platform begins with a pointer to its dispatch table.
            let table = unsafe { Table::from_dispatch(*id.cast::<*const *const c_void>()) };
            Platform { id, table }
        })
        .collect())
}

fn icd_folders(settings: &Settings) -> Vec<PathBuf> {
    match &settings.icd_vendors {
        Some(path) => vec![path.clone()],
        None => vec![
            "/etc/OpenCL/vendors".into(),
            "/usr/share/OpenCL/vendors".into(),
            "/system/vendor/Khronos/OpenCL/vendors".into(),
        ],
    }
}

/// Returns the `.icd` files in the folders, each with the library that it names. A path that is a library is returned as itself.
fn icd_files(folders: &[PathBuf]) -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in folders {
        if folder.is_dir() {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
            files.extend(entries.filter(|p| p.extension().is_some_and(|e| e == "icd")));
        } else if folder.is_file() {
            files.push(folder.clone());
        }
    }
    files.sort();
    files.into_iter().filter_map(|f| library_of(&f).map(|l| (f, l))).collect()
}

fn library_of(file: &Path) -> Option<String> {
    if file.extension().is_none_or(|e| e != "icd") {
        return Some(file.display().to_string());
    }
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().map(str::trim).find(|l| !l.is_empty()).map(Into::into)
}
