/* A single-process library with the binary interface of the MPI 5 standard: it rejects handles of other interfaces. */
#include <stdint.h>
#include <string.h>

#define WORLD 0x101
#define BYTE 0x247
#define ERRORS_RETURN 0x143
#define SERIALIZED 2048
#define COPY 0x5555

static int initialized, finalized;

int MPI_Abi_get_version(int *major, int *minor) {
    *major = 1;
    *minor = 0;
    return 0;
}
int MPI_Initialized(int *flag) {
    *flag = initialized;
    return 0;
}
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    (void)argc, (void)argv;
    if (required != SERIALIZED || initialized) return 1;
    initialized = 1;
    *provided = required;
    return 0;
}
int MPI_Finalize(void) {
    finalized = 1;
    return 0;
}
int MPI_Abort(uintptr_t comm, int code) {
    (void)comm;
    return code;
}
int MPI_Comm_dup(uintptr_t comm, uintptr_t *copy) {
    if (comm != WORLD) return 5;
    *copy = COPY;
    return 0;
}
int MPI_Comm_set_errhandler(uintptr_t comm, uintptr_t handler) { return comm == COPY && handler == ERRORS_RETURN ? 0 : 6; }
int MPI_Comm_rank(uintptr_t comm, int *rank) {
    *rank = 0;
    return comm == COPY ? 0 : 5;
}
int MPI_Comm_size(uintptr_t comm, int *size) {
    *size = 1;
    return comm == COPY ? 0 : 5;
}
int MPI_Isend(const void *data, int count, uintptr_t type, int to, int tag, uintptr_t comm, uintptr_t *request) {
    (void)data, (void)count, (void)to, (void)tag, (void)comm, (void)request;
    return type == BYTE ? 0 : 3;
}
int MPI_Irecv(void *data, int count, uintptr_t type, int from, int tag, uintptr_t comm, uintptr_t *request) {
    (void)data, (void)count, (void)from, (void)tag, (void)comm, (void)request;
    return type == BYTE ? 0 : 3;
}
int MPI_Test(uintptr_t *request, int *flag, void *status) {
    (void)request;
    *flag = 1;
    return status == 0 ? 0 : 7;
}
int MPI_Iprobe(int from, int tag, uintptr_t comm, int *flag, void *status) {
    (void)from, (void)tag, (void)comm;
    *flag = 0;
    return status == 0 ? 0 : 7;
}
int MPI_Get_library_version(char *text, int *length) {
    strcpy(text, finalized ? "Stub 5.0, finalized" : "Stub 5.0");
    *length = (int)strlen(text);
    return 0;
}
int MPI_Error_string(int code, char *text, int *length) {
    strcpy(text, "class 0");
    text[6] = (char)('0' + code % 10);
    *length = 7;
    return 0;
}
