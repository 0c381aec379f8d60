//! A stand-in for NVIDIA's management library where there is no GPU: a shared library with the same
//! C functions, loaded by kdeploy as it loads the real one. What it tells stands in the text file
//! that FAKE_NVML_FILE names, read anew at every call:
//!
//! ```text
//! gpu TOTAL_MIB RESERVED_MIB MAJOR.MINOR NAME
//! process GPU PID MIB
//! stuck GPU MIB
//! ```
//!
//! As with the driver, a process stops being listed and its memory is free once it is dead; `stuck`
//! memory stays. Structures and codes are those of nvml.h (driver 610).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

const SUCCESS: c_uint = 0;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const INSUFFICIENT_SIZE: c_uint = 7;
const MIB: u64 = 1 << 20;

struct Gpu {
    total: u64,
    reserved: u64,
    capability: (c_int, c_int),
    name: String,
    used: u64,
    processes: Vec<(u32, u64)>,
}

fn read() -> Vec<Gpu> {
    let path = std::env::var("FAKE_NVML_FILE").unwrap_or_default();
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut gpus: Vec<Gpu> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words.first().copied() {
            Some("gpu") => {
                let (major, minor) = words[3].split_once('.').unwrap();
                gpus.push(Gpu {
                    total: number(1) * MIB,
                    reserved: number(2) * MIB,
                    capability: (major.parse().unwrap(), minor.parse().unwrap()),
                    name: words[4..].join(" "),
                    used: 0,
                    processes: Vec::new(),
                });
            }
            Some("process") if lives(words[2]) => {
                let gpu = &mut gpus[number(1) as usize];
                gpu.used += number(3) * MIB;
                gpu.processes.push((words[2].parse().unwrap(), number(3) * MIB));
            }
            Some("stuck") => gpus[number(1) as usize].used += number(2) * MIB,
            _ => {}
        }
    }
    gpus
}

fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// A handle is the index plus one, so that it is never null.
fn gpu(handle: *mut c_void) -> Option<Gpu> {
    let index = (handle as usize).checked_sub(1)?;
    read().into_iter().nth(index)
}

unsafe fn put(text: &str, to: *mut c_char, length: c_uint) -> c_uint {
    if text.len() + 1 > length as usize {
        return INSUFFICIENT_SIZE;
    }
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        *to.add(text.len()) = 0;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_uint {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_uint {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(_code: c_uint) -> *const c_char {
    const WORDS: &CStr = c"Unknown Error";
    WORDS.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, length: c_uint) -> c_uint {
    unsafe { put("610.57", to, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_uint {
    unsafe { *count = read().len() as c_uint };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut *mut c_void) -> c_uint {
    if index as usize >= read().len() {
        return INVALID_ARGUMENT;
    }
    unsafe { *handle = (index as usize + 1) as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(handle: *mut c_void, to: *mut c_char, length: c_uint) -> c_uint {
    gpu(handle).map_or(INVALID_ARGUMENT, |gpu| unsafe { put(&gpu.name, to, length) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    handle: *mut c_void,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_uint {
    let Some(gpu) = gpu(handle) else { return INVALID_ARGUMENT };
    unsafe { (*major, *minor) = gpu.capability };
    SUCCESS
}

#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: *mut c_void, memory: *mut MemoryV2) -> c_uint {
    let Some(gpu) = gpu(handle) else { return INVALID_ARGUMENT };
    unsafe {
        (*memory).total = gpu.total;
        (*memory).reserved = gpu.reserved;
        (*memory).used = gpu.used;
        (*memory).free = gpu.total - gpu.reserved - gpu.used;
    }
    SUCCESS
}

#[repr(C)]
pub struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: *mut c_void,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_uint {
    let Some(gpu) = gpu(handle) else { return INVALID_ARGUMENT };
    let room = unsafe { *count } as usize;
    unsafe { *count = gpu.processes.len() as c_uint };
    if gpu.processes.is_empty() {
        return SUCCESS;
    }
    if infos.is_null() || room < gpu.processes.len() {
        return INSUFFICIENT_SIZE;
    }
    for (at, (pid, used)) in gpu.processes.iter().enumerate() {
        let info =
            ProcessInfo { pid: *pid, used: *used, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX };
        unsafe { infos.add(at).write(info) };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkState(_: *mut c_void, _link: c_uint, _state: *mut c_uint) -> c_uint {
    NOT_SUPPORTED
}
