/* A stand-in for libnvidia-ml.so.1: NVML's names and structures over a text file, so that the real pynvml and the real
 * child process run where there is no GPU. FAULTLINE_NVML_STATE names the file; it is read anew at each call.
 *
 * One `key value` a line. Of the node: `init`, `count`, `driver`, `cuda`, `hang FUNCTION`, `crash FUNCTION`. Of the GPU
 * number N: `N.key`. A value `!15` is that NVML return code instead of a value; a key that is not there is Not Supported,
 * a field id that is not there is Invalid Argument. `N.lost 15` answers every question about the GPU so.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
enum { VALUE = 512, NAME = 96 };

static int initialized;

static int look(const char *key, char *value) {
    const char *path = getenv("FAULTLINE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[VALUE + NAME];
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        char *space = strchr(line, ' ');
        line[strcspn(line, "\n")] = 0;
        if (!space) continue;
        *space = 0;
        if (strcmp(line, key) == 0) {
            snprintf(value, VALUE, "%s", space + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static void misbehave(const char *function) {
    char named[VALUE];
    if (look("hang", named) && strcmp(named, function) == 0)
        for (;;) pause();
    if (look("crash", named) && strcmp(named, function) == 0) raise(SIGSEGV);
}

static int of_node(const char *function, const char *key, char *value) {
    misbehave(function);
    if (!initialized) return UNINITIALIZED;
    if (!look(key, value)) return UNSUPPORTED;
    return value[0] == '!' ? atoi(value + 1) : SUCCESS;
}

/* Handles are the GPU's number plus one; of a MIG device that times 1000, plus its own number plus one. */
static int of_gpu(const char *function, intptr_t handle, const char *key, char *value) {
    char full[NAME];
    misbehave(function);
    if (!initialized) return UNINITIALIZED;
    snprintf(full, sizeof full, "%d.lost", (int)(handle >= 1000 ? handle / 1000 : handle) - 1);
    if (look(full, value)) return atoi(value);
    snprintf(full, sizeof full, "%d.%s", (int)(handle >= 1000 ? handle / 1000 : handle) - 1, key);
    if (!look(full, value)) return UNSUPPORTED;
    return value[0] == '!' ? atoi(value + 1) : SUCCESS;
}

static int number(const char *function, intptr_t handle, const char *key, unsigned *out) {
    char value[VALUE];
    int code = of_gpu(function, handle, key, value);
    if (code == SUCCESS) *out = (unsigned)strtoul(value, NULL, 0);
    return code;
}

static int big(const char *function, intptr_t handle, const char *key, unsigned long long *out) {
    char value[VALUE];
    int code = of_gpu(function, handle, key, value);
    if (code == SUCCESS) *out = strtoull(value, NULL, 0);
    return code;
}

static int text(const char *function, intptr_t handle, const char *key, char *out, unsigned size) {
    char value[VALUE];
    int code = of_gpu(function, handle, key, value);
    if (code == SUCCESS) snprintf(out, size, "%s", value);
    return code;
}

/* The n-th of comma-separated items; 0 where there are not so many. */
static int item(const char *list, int n, char *out) {
    while (n-- > 0) {
        list = strchr(list, ',');
        if (!list) return 0;
        list++;
    }
    if (!*list) return 0;
    snprintf(out, VALUE, "%.*s", (int)strcspn(list, ","), list);
    return 1;
}

int nvmlInitWithFlags(unsigned flags) {
    char value[VALUE];
    (void)flags;
    misbehave("nvmlInit");
    if (look("init", value) && value[0] == '!') return atoi(value + 1);
    initialized = 1;
    return SUCCESS;
}

int nvmlShutdown(void) {
    initialized = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    static char said[32];
    snprintf(said, sizeof said, "error %d", code);
    return said;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    char value[VALUE];
    int code = of_node("nvmlSystemGetDriverVersion", "driver", value);
    if (code == SUCCESS) snprintf(out, size, "%s", value);
    return code;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    char value[VALUE];
    int code = of_node("nvmlSystemGetCudaDriverVersion", "cuda", value);
    if (code == SUCCESS) *out = atoi(value);
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    char value[VALUE];
    int code = of_node("nvmlDeviceGetCount", "count", value);
    if (code == SUCCESS) *out = (unsigned)atoi(value);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, intptr_t *out) {
    char value[VALUE];
    int code = of_gpu("nvmlDeviceGetHandleByIndex", (intptr_t)index + 1, "handle", value);
    if (code != SUCCESS && code != UNSUPPORTED) return code;
    *out = (intptr_t)index + 1;
    return SUCCESS;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(intptr_t handle, struct pci *out) {
    memset(out, 0, sizeof *out);
    return text("nvmlDeviceGetPciInfo", handle, "pci", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetUUID(intptr_t handle, char *out, unsigned size) {
    char value[VALUE], one[VALUE];
    if (handle < 1000) return text("nvmlDeviceGetUUID", handle, "uuid", out, size);
    int code = of_gpu("nvmlDeviceGetUUID", handle, "mig_devices", value);
    if (code != SUCCESS) return code;
    if (!item(value, (int)(handle % 1000) - 1, one)) return NOT_FOUND;
    snprintf(out, size, "%.*s", (int)strcspn(one, ":"), one);
    return SUCCESS;
}

int nvmlDeviceGetName(intptr_t h, char *out, unsigned size) { return text("nvmlDeviceGetName", h, "name", out, size); }
int nvmlDeviceGetMinorNumber(intptr_t h, unsigned *o) { return number("nvmlDeviceGetMinorNumber", h, "minor", o); }
int nvmlDeviceGetComputeMode(intptr_t h, unsigned *o) { return number("nvmlDeviceGetComputeMode", h, "compute_mode", o); }
int nvmlDeviceGetPersistenceMode(intptr_t h, unsigned *o) { return number("nvmlDeviceGetPersistenceMode", h, "persistence", o); }
int nvmlDeviceGetRetiredPagesPendingStatus(intptr_t h, unsigned *o) { return number("nvmlDeviceGetRetiredPagesPendingStatus", h, "retired_pending", o); }
int nvmlDeviceGetCurrentClocksEventReasons(intptr_t h, unsigned long long *o) { return big("nvmlDeviceGetCurrentClocksEventReasons", h, "clocks_event_reasons", o); }
int nvmlDeviceGetVirtualizationMode(intptr_t h, unsigned *o) { return number("nvmlDeviceGetVirtualizationMode", h, "virtualization", o); }
int nvmlDeviceGetMaxMigDeviceCount(intptr_t h, unsigned *o) { return number("nvmlDeviceGetMaxMigDeviceCount", h, "mig_max", o); }

int nvmlDeviceGetCudaComputeCapability(intptr_t handle, int *major, int *minor) {
    char value[VALUE];
    int code = of_gpu("nvmlDeviceGetCudaComputeCapability", handle, "compute_capability", value);
    if (code == SUCCESS) sscanf(value, "%d.%d", major, minor);
    return code;
}

int nvmlDeviceGetEccMode(intptr_t handle, unsigned *now, unsigned *pending) {
    int code = number("nvmlDeviceGetEccMode", handle, "ecc", now);
    *pending = *now;
    return code;
}

int nvmlDeviceGetMigMode(intptr_t handle, unsigned *now, unsigned *pending) {
    int code = number("nvmlDeviceGetMigMode", handle, "mig", now);
    *pending = *now;
    return code;
}

int nvmlDeviceGetTotalEccErrors(intptr_t handle, int type, int counter, unsigned long long *out) {
    (void)type;
    return big("nvmlDeviceGetTotalEccErrors", handle, counter ? "ecc_aggregate" : "ecc_volatile", out);
}

int nvmlDeviceGetRemappedRows(intptr_t handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    char value[VALUE];
    int code = of_gpu("nvmlDeviceGetRemappedRows", handle, "rows", value);
    if (code == SUCCESS) sscanf(value, "%u %u %u %u", correctable, uncorrectable, pending, failed);
    return code;
}

int nvmlDeviceGetRetiredPages(intptr_t handle, int cause, unsigned *count, unsigned long long *pages) {
    unsigned there = 0, room = *count;
    (void)cause;
    int code = number("nvmlDeviceGetRetiredPages", handle, "retired", &there);
    if (code != SUCCESS) return code;
    *count = there;
    if (!pages) return there ? TOO_SMALL : SUCCESS;
    for (unsigned i = 0; i < there && i < room; i++) pages[i] = 4096ULL * i;
    return there > room ? TOO_SMALL : SUCCESS;
}

struct versioned { unsigned version, first, second; };

int nvmlDeviceGetRepairStatus(intptr_t handle, struct versioned *out) {
    char value[VALUE];
    int code = of_gpu("nvmlDeviceGetRepairStatus", handle, "repair", value);
    if (code == SUCCESS) sscanf(value, "%u %u", &out->first, &out->second);
    return code;
}

int nvmlDeviceGetUnrepairableMemoryFlag_v1(intptr_t handle, struct versioned *out) {
    return number("nvmlDeviceGetUnrepairableMemoryFlag", handle, "unrepairable", &out->first);
}

struct sram { unsigned version; unsigned long long counts[11]; unsigned exceeded; };

int nvmlDeviceGetSramEccErrorStatus(intptr_t handle, struct sram *out) {
    return number("nvmlDeviceGetSramEccErrorStatus", handle, "sram_threshold_exceeded", &out->exceeded);
}

struct memory { unsigned version; unsigned long long total, reserved, available, used; };

int nvmlDeviceGetMemoryInfo_v2(intptr_t handle, struct memory *out) {
    char value[VALUE];
    int code = of_gpu("nvmlDeviceGetMemoryInfo", handle, "memory", value);
    if (code == SUCCESS) sscanf(value, "%llu %llu", &out->total, &out->used);
    return code;
}

struct field { uint32_t id, scope; int64_t time, latency; int type, code; union { unsigned i; unsigned long long l; } value; };

int nvmlDeviceGetFieldValues(intptr_t handle, int count, struct field *fields) {
    char key[NAME], value[VALUE];
    misbehave("nvmlDeviceGetFieldValues");
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "field.%u", fields[i].id);
        value[0] = 0;
        int code = of_gpu("nvmlDeviceGetFieldValues", handle, key, value);
        fields[i].type = 1;
        fields[i].code = code == UNSUPPORTED && !value[0] ? INVALID : code;
        if (code == SUCCESS) fields[i].value.i = (unsigned)strtoul(value, NULL, 0);
    }
    return SUCCESS;
}

struct process { unsigned pid; unsigned long long memory; unsigned gi, ci; };

static int processes(const char *function, intptr_t handle, const char *key, unsigned *count, struct process *out) {
    char value[VALUE], one[VALUE];
    unsigned there = 0, room = *count;
    int code = of_gpu(function, handle, key, value);
    if (code != SUCCESS) return code;
    while (item(value, (int)there, one)) there++;
    *count = there;
    if (there > room || (there && !out)) return TOO_SMALL;
    for (unsigned i = 0; i < there; i++) {
        item(value, (int)i, one);
        memset(&out[i], 0, sizeof out[i]);
        sscanf(one, "%u:%llu", &out[i].pid, &out[i].memory);
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(intptr_t h, unsigned *n, struct process *o) { return processes("nvmlDeviceGetComputeRunningProcesses", h, "compute", n, o); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(intptr_t h, unsigned *n, struct process *o) { return processes("nvmlDeviceGetMPSComputeRunningProcesses", h, "mps", n, o); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(intptr_t h, unsigned *n, struct process *o) { return processes("nvmlDeviceGetGraphicsRunningProcesses", h, "graphics", n, o); }

int nvmlDeviceGetMigDeviceHandleByIndex(intptr_t handle, unsigned index, intptr_t *out) {
    char value[VALUE], one[VALUE];
    int code = of_gpu("nvmlDeviceGetMigDeviceHandleByIndex", handle, "mig_devices", value);
    if (code == UNSUPPORTED || (code == SUCCESS && !item(value, (int)index, one))) return NOT_FOUND;
    *out = handle * 1000 + (intptr_t)index + 1;
    return code;
}

static int instance(intptr_t handle, int which, unsigned *out) {
    char value[VALUE], one[VALUE];
    unsigned ids[2] = {0, 0};
    int code = of_gpu("nvmlDeviceGetGpuInstanceId", handle, "mig_devices", value);
    if (code != SUCCESS) return code;
    if (!item(value, (int)(handle % 1000) - 1, one)) return NOT_FOUND;
    sscanf(one, "%*[^:]:%u:%u", &ids[0], &ids[1]);
    *out = ids[which];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(intptr_t handle, unsigned *out) { return instance(handle, 0, out); }
int nvmlDeviceGetComputeInstanceId(intptr_t handle, unsigned *out) { return instance(handle, 1, out); }

int nvmlDeviceGetNvLinkState(intptr_t handle, unsigned link, unsigned *out) {
    char value[VALUE], one[VALUE];
    int code = of_gpu("nvmlDeviceGetNvLinkState", handle, "links", value);
    if (code != SUCCESS) return code;
    if (!item(value, (int)link, one)) return INVALID;
    *out = (unsigned)atoi(one);
    return SUCCESS;
}

struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; };

int nvmlDeviceGetGpuFabricInfoV(intptr_t handle, struct fabric *out) {
    char value[VALUE];
    unsigned state = 0;
    int code = of_gpu("nvmlDeviceGetGpuFabricInfoV", handle, "fabric", value);
    if (code != SUCCESS) return code;
    sscanf(value, "%u %d %u", &state, &out->status, &out->health);
    out->state = (unsigned char)state;
    return SUCCESS;
}

int nvmlDeviceGetGridLicensableFeatures_v4(intptr_t handle, unsigned *out) {
    unsigned licensed = 0;
    int code = number("nvmlDeviceGetGridLicensableFeatures", handle, "licensed", &licensed);
    if (code != SUCCESS) return code;
    out[0] = out[1] = 1; /* supported; one feature: its code, its state */
    out[2] = 3;
    out[3] = licensed;
    return SUCCESS;
}
