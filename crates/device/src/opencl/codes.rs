//! OpenCL status codes: their names and, for codes that a user can act on, a hint.

/// Returns the name of an OpenCL status code, `CL_…`, or `unknown OpenCL status` if no header lists it.
pub fn code_name(code: i32) -> &'static str {
    NAMES.iter().find(|(c, _)| *c == code).map_or("unknown OpenCL status", |(_, name)| name)
}

/// Returns advice for a status code; empty if no general advice exists.
pub fn hint(code: i32) -> &'static str {
    match code {
        -1 => "no device of this platform is usable; `netcl doctor` gives the reason",
        -2 => "the device is in use or was lost; try again, or restart the driver",
        -4 | -61 => {
            "the device is out of memory, or the request exceeds its limit: use a smaller batch, context or model"
        }
        -5 => {
            "the device ran out of registers, local memory or address space, or a kernel accessed memory out of bounds; a driver reset causes this \
             too"
        }
        -6 => "the host is out of memory, or the driver could not compile",
        -11 => "the kernel did not compile; the build log gives the reason",
        -14 | -9999 => {
            "a command before this one failed: the kernel read or wrote out of bounds, or the driver was reset"
        }
        -36 => {
            "an earlier kernel crashed the queue or the driver was reset; run again with `--profile` or on another device to find it"
        }
        -42 => "the cached binary does not fit this driver; run `netcl cache clear` to rebuild it",
        -54 | -55 => "the work-group is larger than this device or kernel allows",
        -1001 => "no OpenCL platform: install the driver's ICD (`netcl doctor` names the package)",
        _ => "",
    }
}

const NAMES: [(i32, &str); 68] = [
    (0, "CL_SUCCESS"),
    (-1, "CL_DEVICE_NOT_FOUND"),
    (-2, "CL_DEVICE_NOT_AVAILABLE"),
    (-3, "CL_COMPILER_NOT_AVAILABLE"),
    (-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"),
    (-5, "CL_OUT_OF_RESOURCES"),
    (-6, "CL_OUT_OF_HOST_MEMORY"),
    (-7, "CL_PROFILING_INFO_NOT_AVAILABLE"),
    (-8, "CL_MEM_COPY_OVERLAP"),
    (-9, "CL_IMAGE_FORMAT_MISMATCH"),
    (-10, "CL_IMAGE_FORMAT_NOT_SUPPORTED"),
    (-11, "CL_BUILD_PROGRAM_FAILURE"),
    (-12, "CL_MAP_FAILURE"),
    (-13, "CL_MISALIGNED_SUB_BUFFER_OFFSET"),
    (-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"),
    (-15, "CL_COMPILE_PROGRAM_FAILURE"),
    (-16, "CL_LINKER_NOT_AVAILABLE"),
    (-17, "CL_LINK_PROGRAM_FAILURE"),
    (-18, "CL_DEVICE_PARTITION_FAILED"),
    (-19, "CL_KERNEL_ARG_INFO_NOT_AVAILABLE"),
    (-30, "CL_INVALID_VALUE"),
    (-31, "CL_INVALID_DEVICE_TYPE"),
    (-32, "CL_INVALID_PLATFORM"),
    (-33, "CL_INVALID_DEVICE"),
    (-34, "CL_INVALID_CONTEXT"),
    (-35, "CL_INVALID_QUEUE_PROPERTIES"),
    (-36, "CL_INVALID_COMMAND_QUEUE"),
    (-37, "CL_INVALID_HOST_PTR"),
    (-38, "CL_INVALID_MEM_OBJECT"),
    (-39, "CL_INVALID_IMAGE_FORMAT_DESCRIPTOR"),
    (-40, "CL_INVALID_IMAGE_SIZE"),
    (-41, "CL_INVALID_SAMPLER"),
    (-42, "CL_INVALID_BINARY"),
    (-43, "CL_INVALID_BUILD_OPTIONS"),
    (-44, "CL_INVALID_PROGRAM"),
    (-45, "CL_INVALID_PROGRAM_EXECUTABLE"),
    (-46, "CL_INVALID_KERNEL_NAME"),
    (-47, "CL_INVALID_KERNEL_DEFINITION"),
    (-48, "CL_INVALID_KERNEL"),
    (-49, "CL_INVALID_ARG_INDEX"),
    (-50, "CL_INVALID_ARG_VALUE"),
    (-51, "CL_INVALID_ARG_SIZE"),
    (-52, "CL_INVALID_KERNEL_ARGS"),
    (-53, "CL_INVALID_WORK_DIMENSION"),
    (-54, "CL_INVALID_WORK_GROUP_SIZE"),
    (-55, "CL_INVALID_WORK_ITEM_SIZE"),
    (-56, "CL_INVALID_GLOBAL_OFFSET"),
    (-57, "CL_INVALID_EVENT_WAIT_LIST"),
    (-58, "CL_INVALID_EVENT"),
    (-59, "CL_INVALID_OPERATION"),
    (-60, "CL_INVALID_GL_OBJECT"),
    (-61, "CL_INVALID_BUFFER_SIZE"),
    (-62, "CL_INVALID_MIP_LEVEL"),
    (-63, "CL_INVALID_GLOBAL_WORK_SIZE"),
    (-64, "CL_INVALID_PROPERTY"),
    (-65, "CL_INVALID_IMAGE_DESCRIPTOR"),
    (-66, "CL_INVALID_COMPILER_OPTIONS"),
    (-67, "CL_INVALID_LINKER_OPTIONS"),
    (-68, "CL_INVALID_DEVICE_PARTITION_COUNT"),
    (-69, "CL_INVALID_PIPE_SIZE"),
    (-70, "CL_INVALID_DEVICE_QUEUE"),
    (-71, "CL_INVALID_SPEC_ID"),
    (-72, "CL_MAX_SIZE_RESTRICTION_EXCEEDED"),
    (-1001, "CL_PLATFORM_NOT_FOUND_KHR"),
    (-1057, "CL_DEVICE_PARTITION_FAILED_EXT"),
    (-1058, "CL_INVALID_PARTITION_COUNT_EXT"),
    (-1138, "CL_INCOMPATIBLE_COMMAND_QUEUE_KHR"),
    (-9999, "CL_NV_ILLEGAL_BUFFER_ACCESS"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_code_has_its_own_name() {
        for code in (-72..=-30).chain(-19..=0) {
            assert!(code_name(code).starts_with("CL_"), "{code}");
        }
        let mut names: Vec<_> = NAMES.iter().map(|(_, n)| n).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMES.len());
        assert_eq!(code_name(-7777), "unknown OpenCL status");
    }
}
