// A driver of CUDA with two GPUs, for tests/unit/test_doctor.py.
#include <unistd.h>
extern "C" {
int cuDriverGetVersion(int *answer) { *answer = VERSION; return 0; }
int cuInit(unsigned) { sleep(SECONDS); return ERROR; }
int cuDeviceGetCount(int *answer) { *answer = 2; return 0; }
int cuDeviceGetAttribute(int *answer, int what, int device) {
    *answer = what == 75 ? 8 + device : what == 20 ? 3 : 0; return 0; }
int cuDeviceGetName(char *name, int size, int device) { __builtin_snprintf(name, size, "GPU %d", device); return 0; }
}
