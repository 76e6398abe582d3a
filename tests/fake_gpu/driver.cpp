// The driver as far as it is asked for by name: libcuda.so.1. Green contexts are shares of the multiprocessors, in
// steps as the GPU's generation has them; a stream of one takes longer in proportion. What is not here does nothing.
#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

extern "C" void* fake_driver(const char* name);
extern "C" void* fake_stream(double share);

namespace {

unsigned env(const char* name, unsigned usual) {
  const char* value = getenv(name);
  return value ? unsigned(atol(value)) : usual;
}

int resource(CUdevice, CUdevResource* out, CUdevResourceType type) {
  memset(out, 0, sizeof *out);
  out->type = type;
  out->sm.smCount = env("FAKE_SMS", 132);
  return 0;
}

int split(
    CUdevResource* groups, unsigned* count, const CUdevResource* whole, CUdevResource* rest, unsigned,
    unsigned wanted) {
  bool is_hopper = env("FAKE_CC", 90) >= 90;
  unsigned step = is_hopper ? 8 : 2, least = is_hopper ? 8 : 4;
  unsigned given = std::max(least, (wanted + step - 1) / step * step);
  if (given >= whole->sm.smCount) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  *groups = *rest = *whole;
  *count = 1;
  groups->sm.smCount = given;
  rest->sm.smCount -= given;
  return 0;
}

int describe(CUdevResourceDesc* out, CUdevResource* resources, unsigned) {
  *out = (CUdevResourceDesc)uintptr_t(resources->sm.smCount);
  return 0;
}

int create(CUgreenCtx* out, CUdevResourceDesc described, CUdevice, unsigned) {
  *out = (CUgreenCtx)described;
  return 0;
}

int stream(CUstream* out, CUgreenCtx context, unsigned, int) {
  *out = (CUstream)fake_stream(double(uintptr_t(context)) / env("FAKE_SMS", 132));
  return 0;
}

}  // namespace

extern "C" CUresult cuGetProcAddress_v2(
    const char* name, void** out, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  static const std::map<std::string, void*> known = {
      {"cuDeviceGetDevResource", (void*)resource},
      {"cuDevSmResourceSplitByCount", (void*)split},
      {"cuDevResourceGenerateDesc", (void*)describe},
      {"cuGreenCtxCreate", (void*)create},
      {"cuGreenCtxStreamCreate", (void*)stream},
      {"cuGetProcAddress", (void*)cuGetProcAddress_v2},
  };
  auto found = known.find(name);
  *out = found == known.end() ? fake_driver(name) : found->second;
  if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
