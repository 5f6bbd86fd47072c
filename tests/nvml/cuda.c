/* A stand-in for libcuda.so.1: the calls of the probe over the same text file as NVML's. `CALL code` makes one fail,
 * `cuda_hang CALL` hangs in it, `cuda_crash CALL` crashes; `cuda_wrong 1` reads back another page than was written. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char page[4096];

static int look(const char *key, char *value) {
    const char *path = getenv("FAULTLINE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[64], said[128];
    int found = 0;
    if (!file) return 0;
    while (!found && fscanf(file, "%63s%*[ ]%127[^\n]", name, said) >= 1) {
        if (strcmp(name, key) == 0) {
            strcpy(value, said);
            found = 1;
        }
        said[0] = 0;
    }
    fclose(file);
    return found;
}

static int call(const char *name) {
    char value[128];
    if (look("cuda_hang", value) && strcmp(value, name) == 0)
        for (;;) pause();
    if (look("cuda_crash", value) && strcmp(value, name) == 0) raise(SIGSEGV);
    return look(name, value) ? atoi(value) : 0;
}

int cuInit(unsigned flags) { (void)flags; return call("cuInit"); }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return call("cuDeviceGet"); }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { (void)flags; (void)device; *context = page; return call("cuCtxCreate"); }
int cuCtxDestroy_v2(void *context) { (void)context; return 0; }
int cuMemAlloc_v2(unsigned long long *at, size_t size) { *at = 1; (void)size; return call("cuMemAlloc"); }
int cuMemFree_v2(unsigned long long at) { (void)at; return call("cuMemFree"); }

int cuMemcpyHtoD_v2(unsigned long long at, const void *from, size_t size) {
    (void)at;
    memcpy(page, from, size);
    return call("cuMemcpyHtoD");
}

int cuMemcpyDtoH_v2(void *to, unsigned long long at, size_t size) {
    char value[128];
    (void)at;
    memcpy(to, page, size);
    if (look("cuda_wrong", value)) ((unsigned char *)to)[0] ^= 1;
    return call("cuMemcpyDtoH");
}

int cuGetErrorName(int code, const char **name) {
    *name = code == 46 ? "CUDA_ERROR_DEVICE_UNAVAILABLE" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
