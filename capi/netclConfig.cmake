# find_package(netcl) defines the targets netcl::netcl (shared) and netcl::static. It expects the libraries in this file's prefix.
get_filename_component(NETCL_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET netcl::netcl)
  add_library(netcl::netcl SHARED IMPORTED)
  set_target_properties(netcl::netcl PROPERTIES
    IMPORTED_LOCATION "${NETCL_PREFIX}/lib/libnetcl.so.0"
    IMPORTED_SONAME "libnetcl.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${NETCL_PREFIX}/include")

  add_library(netcl::static STATIC IMPORTED)
  set_target_properties(netcl::static PROPERTIES
    IMPORTED_LOCATION "${NETCL_PREFIX}/lib/libnetcl.a"
    INTERFACE_INCLUDE_DIRECTORIES "${NETCL_PREFIX}/include"
    INTERFACE_LINK_LIBRARIES "m;dl;pthread")
endif()
