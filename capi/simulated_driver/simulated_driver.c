// A library with the name of the seeds' driver, for programs that load simulated_driver.so. It has the functions of netcl_driver.h, from libnetcl.
//
// Build it with one command; PREFIX is the folder of `make capi`, and the program finds libnetcl next to this library:
//
//     gcc -shared -fPIC -o simulated_driver.so simulated_driver.c -IPREFIX/include -LPREFIX/lib -Wl,--no-as-needed -lnetcl -Wl,-rpath,'$ORIGIN'
//
// On Windows, a program finds only a library's own functions. Link the static library there, and export its symbols:
//
//     gcc -shared -o simulated_driver.dll simulated_driver.c -IPREFIX/include -Wl,--whole-archive PREFIX/lib/libnetcl.a -Wl,--no-whole-archive
//         -Wl,--export-all-symbols
#include <netcl_driver.h>

// Returns the name of the library that has the functions. Its call of the library keeps the dependency on libnetcl.
const char *simulated_driver_name(void) { return simulated_get_compute_unit_count(0) > 0 ? "AetherCL" : ""; }
