// Four ways for a program to fail on a GPU that is sound. Each kills only its own process; the card is left as it was.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

__global__ void write_to(int *place) { *place = 1; }
__global__ void give_up() { asm volatile("trap;"); }
__global__ void write_off_by(char *place) { *reinterpret_cast<int *>(place + 1) = 1; }
__global__ void write_beyond_shared() {
    extern __shared__ int own[];
    volatile int *far = own + (1 << 22);
    *far = 1;
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "";
    char *buffer = nullptr;
    if (cudaMalloc(&buffer, 1 << 20) != cudaSuccess) return 3;
    switch (*kind) {
        case 'u': write_to<<<1, 1>>>(reinterpret_cast<int *>(0x700000000000ull)); break;  // unmapped: Xid 31
        case 't': give_up<<<1, 1>>>(); break;                                              // trap: Xid 43
        case 'm': write_off_by<<<1, 1>>>(buffer); break;                                   // misaligned: Xid 13
        case 's': write_beyond_shared<<<1, 1, 64>>>(); break;                              // shared memory: Xid 13, 43
        default: fprintf(stderr, "usage: faults u|t|m|s\n"); return 2;
    }
    cudaError_t error = cudaDeviceSynchronize();
    printf("%d %s\n", static_cast<int>(error), cudaGetErrorString(error));
    return error == cudaSuccess ? 1 : 0;
}
