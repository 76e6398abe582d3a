// A CUDA runtime without a GPU: libcudart.so.13 as far as torch calls it.
//
// Memory is mapped lazily up to a limit. A kernel computes nothing: it takes its time on its stream's own timeline, from
// the end of what came before there. Streams do not slow each other. Capturing a stream collects its kernels as a
// graph, and whatever CUDA forbids meanwhile counts as a violation and spoils the graph. Functions that are not here are stubs that return 0 (tests/fake_gpu/build.py).
//
// FAKE_CC (80, 89, 90, 120), FAKE_NAME, FAKE_SMS, FAKE_MIB, FAKE_SLOWER choose the GPU.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

// Of blas.cpp as well: how many times as long kernels take as on an H100, so that none beats its GPU's data sheet.
extern "C" double fake_slower() {
  static const char* value = getenv("FAKE_SLOWER");
  return value ? atof(value) : 1;
}

namespace {

constexpr double kLatencyS = 3e-6;        // from a launch to its start
constexpr double kMinKernelS = 1.8e-6;    // of the smallest kernel
constexpr double kBytesPerS = 2.4e12;     // of elementwise kernels, as if every thread moved 20 bytes
constexpr double kAttentionBlockS = 8e-6; // of one block of attention per multiprocessor
constexpr double kGraphNodeS = 0.7e-6;    // between kernels of a graph
constexpr double kLinkBytesPerS = 25e9;   // host and device
constexpr double kDeviceBytesPerS = 3e12;
constexpr double kClockHz = 1.755e9;
constexpr size_t kLaunchQueue = 1022;     // launches that a stream holds before the host waits
constexpr size_t kContextBytes = size_t(530) << 20;
constexpr size_t kPage = size_t(2) << 20;

using Lock = std::lock_guard<std::mutex>;
std::mutex mutex_;

long env(const char* name, long usual) {
  const char* value = getenv(name);
  return value ? atol(value) : usual;
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

void wait_until(double when) {
  for (double left; (left = when - now()) > 0;) {
    if (left < 2e-4) {
      std::this_thread::yield();
      continue;
    }
    left -= 1e-4;
    timespec t{time_t(left), long(1e9 * (left - time_t(left)))};
    nanosleep(&t, nullptr);
  }
}

struct Graph {
  double seconds = 0;
  long nodes = 0;
};

struct Capture {
  unsigned long long id;
  Graph* graph;
  std::thread::id origin;
  int mode;
  bool is_spoilt;
};

struct Stream {
  double free_at = 0;
  int priority = 0;
  Capture* capture = nullptr;
  std::deque<double> queue;
};

struct Event {
  double at = -1;
  bool has_time = true;
  Capture* capture = nullptr;
};

Stream legacy;
std::set<Stream*> streams;
std::vector<Capture*> captures;
unsigned long long num_captures = 0;
std::unordered_map<const void*, std::string> kernels;
std::map<char*, size_t> on_device, pinned;
size_t used = 0;
long num_graphs = 0, num_nodes = 0, num_launches = 0, num_violations = 0, num_full_queues = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

Stream* stream_of(cudaStream_t raw) {
  return raw == nullptr || raw == cudaStreamLegacy || raw == cudaStreamPerThread ? &legacy : (Stream*)raw;
}

size_t total() { return size_t(env("FAKE_MIB", 81100)) << 20; }

void violate(Capture* capture, const char* what) {
  capture->is_spoilt = true;
  num_violations++;
  fprintf(stderr, "[fake gpu] capture violation: %s\n", what);
}

// Whether a call that CUDA forbids during a capture comes during one that sees this thread.
bool is_forbidden(const char* what) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  for (Capture* capture : captures) {
    bool is_mine = capture->origin == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
    bool is_global = thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (is_mine || is_global) {
      violate(capture, what);
      return true;
    }
  }
  return false;
}

bool is_in(const std::map<char*, size_t>& blocks, const void* pointer) {
  auto block = blocks.upper_bound((char*)pointer);
  return block != blocks.begin() && (--block, (char*)pointer < block->first + block->second);
}

double kernel_s(const std::string& name, dim3 grid, dim3 block, void** arguments) {
  if (name.find("spin_kernel") != std::string::npos) return *(int64_t*)arguments[0] / kClockHz;
  double blocks = double(grid.x) * grid.y * grid.z, threads = double(block.x) * block.y * block.z;
  if (name.find("flash") != std::string::npos)
    return fake_slower() * std::max(5e-6, blocks / env("FAKE_SMS", 132) * kAttentionBlockS);
  return fake_slower() * std::max(kMinKernelS, blocks * threads * 20 / kBytesPerS);
}

cudaError_t copy(void* to, const void* from, size_t size, cudaStream_t raw, bool is_sync) {
  double over;
  {
    Lock lock(mutex_);
    bool is_to_device = is_in(on_device, to), is_from_device = is_in(on_device, from);
    bool is_pageable = (!is_to_device && !is_in(pinned, to)) || (!is_from_device && !is_in(pinned, from));
    Stream* stream = stream_of(raw);
    if (stream->capture) {
      if (is_pageable) violate(stream->capture, "a copy of pageable memory");
      stream->capture->graph->nodes++;
      stream->capture->graph->seconds += 1.5e-6;
      return cudaSuccess;
    }
    if (is_sync && is_forbidden("cudaMemcpy")) return result(cudaErrorStreamCaptureUnsupported);
    // Weights are copied nowhere: they would fill the host's memory.
    if (!(is_to_device && is_from_device) || size < (size_t(64) << 20)) memmove(to, from, size);
    double seconds = is_to_device && is_from_device ? 2 * size / kDeviceBytesPerS : 1.5e-6 + size / kLinkBytesPerS;
    over = stream->free_at = std::max(stream->free_at, now() + kLatencyS) + seconds;
    is_sync = is_sync || (!is_to_device && is_pageable);
  }
  if (is_sync) wait_until(over);
  return cudaSuccess;
}

}  // namespace

extern "C" {

// Of blas.cpp as well: one kernel of so many seconds.
int fake_launch(void* raw, double seconds) {
  double room_at = 0;
  {
    Lock lock(mutex_);
    Stream* stream = stream_of((cudaStream_t)raw);
    num_launches++;
    if (stream->capture) {
      stream->capture->graph->nodes++;
      stream->capture->graph->seconds += seconds;
      return stream->capture->is_spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    }
    double time = now();
    while (!stream->queue.empty() && stream->queue.front() <= time) stream->queue.pop_front();
    if (stream->queue.size() >= kLaunchQueue) {
      room_at = stream->queue.front();
      num_full_queues++;
    }
    stream->free_at = std::max(stream->free_at, time + kLatencyS) + seconds;
    stream->queue.push_back(stream->free_at);
  }
  if (room_at > 0) wait_until(room_at);
  return cudaSuccess;
}

// -- kernels

static cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, cudaStream_t stream) {
  auto found = kernels.find(function);
  const std::string name = found == kernels.end() ? "?" : found->second;
  return result((cudaError_t)fake_launch(stream, kernel_s(name, grid, block, arguments)));
}

static thread_local struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} configuration;

void** __cudaRegisterFatBinary(void*) { return (void**)malloc(8); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(
    void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  kernels[host] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(cudaStream_t*)stream = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* out, const void* function) {
  *out = (cudaFunction_t)function;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(
    cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t, cudaStream_t stream) {
  return launch((const void*)kernel, grid, block, arguments, stream);
}
cudaError_t cudaLaunchKernel(
    const void* function, dim3 grid, dim3 block, void** arguments, size_t, cudaStream_t stream) {
  return launch(function, grid, block, arguments, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch(function, config->gridDim, config->blockDim, arguments, config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
  memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024;
  // torch has no code of its own for 8.9: such a GPU runs what was built for 8.6.
  int capability = int(env("FAKE_CC", 90));
  out->binaryVersion = out->ptxVersion = capability == 89 ? 86 : capability;
  out->numRegs = 64;
  out->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* out, const void*, int, size_t) {
  *out = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* out, const void*, int, size_t, unsigned) {
  *out = 2;
  return cudaSuccess;
}

// -- the device

cudaError_t cudaGetDeviceCount(int* out) {
  *out = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* out) {
  *out = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* out) {
  *out = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* out) {
  *out = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  int capability = int(env("FAKE_CC", 90));
  memset(out, 0, sizeof *out);
  const char* name = getenv("FAKE_NAME");
  strncpy(out->name, name ? name : "NVIDIA H100 80GB HBM3", 255);
  out->major = capability / 10;
  out->minor = capability % 10;
  out->totalGlobalMem = total();
  out->multiProcessorCount = int(env("FAKE_SMS", 132));
  out->warpSize = 32;
  out->maxThreadsPerBlock = 1024;
  out->maxThreadsPerMultiProcessor = 2048;
  out->sharedMemPerBlock = 49152;
  out->sharedMemPerBlockOptin = 232448;
  out->sharedMemPerMultiprocessor = 233472;
  out->regsPerBlock = out->regsPerMultiprocessor = 65536;
  out->l2CacheSize = 50 << 20;
  for (int i = 0; i < 3; i++) {
    out->maxThreadsDim[i] = i < 2 ? 1024 : 64;
    out->maxGridSize[i] = i ? 65535 : 2147483647;
  }
  for (int i = 0; i < 16; i++) out->uuid.bytes[i] = char(i + 1);
  out->concurrentKernels = out->unifiedAddressing = out->canMapHostMemory = 1;
  out->textureAlignment = 512;
  out->memoryBusWidth = 5120;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr attribute, int) {
  static const std::map<int, int> known = {
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxBlockDimX, 1024},
      {cudaDevAttrMaxBlockDimY, 1024},
      {cudaDevAttrMaxBlockDimZ, 64},
      {cudaDevAttrMaxGridDimX, 2147483647},
      {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrClockRate, 1755000},
      {cudaDevAttrL2CacheSize, 50 << 20},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
      {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
      {cudaDevAttrCooperativeLaunch, 1},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
      {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
  };
  int capability = int(env("FAKE_CC", 90));
  auto found = known.find(attribute);
  *out = attribute == cudaDevAttrMultiProcessorCount      ? int(env("FAKE_SMS", 132))
         : attribute == cudaDevAttrComputeCapabilityMajor ? capability / 10
         : attribute == cudaDevAttrComputeCapabilityMinor ? capability % 10
         : found == known.end()                           ? 0
                                                          : found->second;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* out, int size, int) {
  snprintf(out, size, "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* out, int, int) {
  *out = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  double over;
  {
    Lock lock(mutex_);
    if (is_forbidden("cudaDeviceSynchronize")) return result(cudaErrorStreamCaptureUnsupported);
    over = legacy.free_at;
    for (Stream* stream : streams) over = std::max(over, stream->free_at);
  }
  wait_until(over);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local char text[32];
  snprintf(text, sizeof text, "cudaError%d", error);
  return text;
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

// -- memory

cudaError_t cudaMalloc(void** out, size_t size) {
  Lock lock(mutex_);
  *out = nullptr;
  if (is_forbidden("cudaMalloc")) return result(cudaErrorStreamCaptureUnsupported);
  if (used + size > total() - kContextBytes) return result(cudaErrorMemoryAllocation);
  void* map = mmap(
      nullptr, size + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return result(cudaErrorMemoryAllocation);
  char* start = (char*)((uintptr_t(map) + kPage - 1) & ~uintptr_t(kPage - 1));
  on_device[start] = size;
  used += size;
  *out = start;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  Lock lock(mutex_);
  if (!pointer) return cudaSuccess;
  if (is_forbidden("cudaFree")) return result(cudaErrorStreamCaptureUnsupported);
  auto block = on_device.find((char*)pointer);
  if (block == on_device.end()) return result(cudaErrorInvalidValue);
  used -= block->second;
  munmap(pointer, block->second);
  on_device.erase(block);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** out, size_t size, cudaStream_t) { return cudaMalloc(out, size); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* whole) {
  Lock lock(mutex_);
  *whole = total();
  *free = *whole - kContextBytes - used;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** out, size_t size, unsigned) {
  Lock lock(mutex_);
  if (is_forbidden("cudaHostAlloc")) return result(cudaErrorStreamCaptureUnsupported);
  *out = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  memset(*out, 0, size);
  pinned[(char*)*out] = size;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** out, size_t size) { return cudaHostAlloc(out, size, 0); }
cudaError_t cudaFreeHost(void* pointer) {
  Lock lock(mutex_);
  pinned.erase((char*)pointer);
  free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned) {
  Lock lock(mutex_);
  pinned[(char*)pointer] = size;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  Lock lock(mutex_);
  pinned.erase((char*)pointer);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** out, void* pointer, unsigned) {
  *out = pointer;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  Lock lock(mutex_);
  memset(out, 0, sizeof *out);
  out->type = is_in(on_device, pointer) ? cudaMemoryTypeDevice
              : is_in(pinned, pointer)  ? cudaMemoryTypeHost
                                        : cudaMemoryTypeUnregistered;
  out->devicePointer = (void*)pointer;
  out->hostPointer = out->type == cudaMemoryTypeHost ? (void*)pointer : nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, size, stream, false);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  return copy(to, from, size, nullptr, true);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  if (size < (1 << 20) && !stream_of(stream)->capture) memset(to, value, size);
  return (cudaError_t)fake_launch(stream, 1.5e-6);
}
cudaError_t cudaMemset(void* to, int value, size_t size) { return cudaMemsetAsync(to, value, size, nullptr); }
cudaError_t cudaGetSymbolAddress(void** out, const void*) {
  static char nothing[4096];
  *out = nothing;
  return cudaSuccess;
}

// -- streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned, int priority) {
  Lock lock(mutex_);
  Stream* stream = new Stream;
  stream->priority = priority;
  streams.insert(stream);
  *out = (cudaStream_t)stream;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithPriority(out, 0, 0); }
cudaError_t cudaStreamGetPriority(cudaStream_t raw, int* out) {
  *out = stream_of(raw)->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t raw) {
  double over;
  {
    Lock lock(mutex_);
    Stream* stream = stream_of(raw);
    if (stream->capture) violate(stream->capture, "cudaStreamSynchronize of a captured stream");
    if (stream->capture || is_forbidden("cudaStreamSynchronize")) return result(cudaErrorStreamCaptureUnsupported);
    over = stream->free_at;
  }
  wait_until(over);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t raw) {
  Lock lock(mutex_);
  Stream* stream = stream_of(raw);
  if (stream->capture || is_forbidden("cudaStreamQuery")) return result(cudaErrorStreamCaptureUnsupported);
  return stream->free_at <= now() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t raw, cudaEvent_t raw_event, unsigned) {
  Lock lock(mutex_);
  Event* event = (Event*)raw_event;
  Stream* stream = stream_of(raw);
  if (stream->capture && !event->capture && event->at >= 0) {
    violate(stream->capture, "a captured stream waits for an event outside");
    return result(cudaErrorStreamCaptureIsolation);
  }
  if (event->capture) stream->capture = event->capture;
  else stream->free_at = std::max(stream->free_at, event->at);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  Event* event = new Event;
  event->has_time = !(flags & cudaEventDisableTiming);
  *out = (cudaEvent_t)event;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete (Event*)event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t raw, cudaStream_t raw_stream, unsigned) {
  Lock lock(mutex_);
  Event* event = (Event*)raw;
  Stream* stream = stream_of(raw_stream);
  event->capture = stream->capture;
  if (!stream->capture) event->at = stream->free_at = std::max(stream->free_at, now() + 2e-6);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t raw) {
  Lock lock(mutex_);
  Event* event = (Event*)raw;
  if (event->capture || is_forbidden("cudaEventQuery")) return result(cudaErrorStreamCaptureUnsupported);
  return event->at <= now() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t raw) {
  double over;
  {
    Lock lock(mutex_);
    Event* event = (Event*)raw;
    if (event->capture || is_forbidden("cudaEventSynchronize")) return result(cudaErrorStreamCaptureUnsupported);
    over = event->at;
  }
  wait_until(over);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t raw_start, cudaEvent_t raw_end) {
  Lock lock(mutex_);
  Event *start = (Event*)raw_start, *end = (Event*)raw_end;
  if (start->at < 0 || end->at < 0 || !start->has_time || !end->has_time)
    return result(cudaErrorInvalidResourceHandle);
  if (std::max(start->at, end->at) > now()) return result(cudaErrorNotReady);
  *milliseconds = float(1e3 * (end->at - start->at));
  return cudaSuccess;
}

// -- capture

cudaError_t cudaStreamBeginCapture(cudaStream_t raw, cudaStreamCaptureMode mode) {
  Lock lock(mutex_);
  Stream* stream = stream_of(raw);
  if (stream == &legacy) return result(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return result(cudaErrorIllegalState);
  stream->capture = new Capture{++num_captures, new Graph, std::this_thread::get_id(), int(mode), false};
  captures.push_back(stream->capture);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCaptureToGraph(
    cudaStream_t stream, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
    cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(stream, mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t raw, cudaGraph_t* out) {
  Lock lock(mutex_);
  Stream* stream = stream_of(raw);
  Capture* capture = stream->capture;
  if (!capture) return result(cudaErrorIllegalState);
  for (Stream* each : streams)
    if (each->capture == capture) each->capture = nullptr;
  captures.erase(std::find(captures.begin(), captures.end(), capture));
  if (capture->origin != std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed)
    return result(cudaErrorStreamCaptureWrongThread);
  *out = capture->is_spoilt ? nullptr : (cudaGraph_t)capture->graph;
  return capture->is_spoilt ? result(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
static cudaStreamCaptureStatus status_of(Stream* stream) {
  if (!stream->capture) return cudaStreamCaptureStatusNone;
  return stream->capture->is_spoilt ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t raw, cudaStreamCaptureStatus* status) {
  Lock lock(mutex_);
  *status = status_of(stream_of(raw));
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t raw, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges, size_t* num_dependencies) {
  Lock lock(mutex_);
  Stream* stream = stream_of(raw);
  *status = status_of(stream);
  if (stream->capture && id) *id = stream->capture->id;
  if (stream->capture && graph) *graph = (cudaGraph_t)stream->capture->graph;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (num_dependencies) *num_dependencies = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*(int*)mode, thread_mode);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t raw, unsigned long long) {
  Lock lock(mutex_);
  *out = (cudaGraphExec_t) new Graph(*(Graph*)raw);
  num_graphs++;
  num_nodes += ((Graph*)raw)->nodes;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t raw, cudaStream_t stream) {
  Graph* graph = (Graph*)raw;
  return (cudaError_t)fake_launch(stream, graph->seconds + kGraphNodeS * graph->nodes);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* out) {
  *out = ((Graph*)graph)->nodes;
  return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void*, cudaHostFn_t, unsigned, unsigned) {
  *out = (cudaUserObject_t)malloc(8);
  return cudaSuccess;
}

// -- the driver's functions that torch asks for by name

static int driver_ok() { return 0; }
static int driver_context(void** out) {
  *out = (void*)8;
  return 0;
}
static int driver_state(int, unsigned* flags, int* is_active) {
  if (flags) *flags = 0;
  *is_active = 1;
  return 0;
}
static int driver_error(int, const char** text) {
  *text = "fake";
  return 0;
}
static int driver_device(int* out, int) {
  *out = 0;
  return 0;
}
static int driver_attribute(int* out, int attribute, int) {
  return cudaDeviceGetAttribute(out, (cudaDeviceAttr)attribute, 0);
}
static void* fake_driver(const char* name) {
  static const std::map<std::string, void*> known = {
      {"cuCtxGetCurrent", (void*)driver_context},    {"cuDevicePrimaryCtxGetState", (void*)driver_state},
      {"cuGetErrorString", (void*)driver_error},     {"cuDeviceGet", (void*)driver_device},
      {"cuDeviceGetAttribute", (void*)driver_attribute},
  };
  auto found = known.find(name);
  return found == known.end() ? (void*)driver_ok : found->second;
}
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** out, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* status) {
  *out = fake_driver(name);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// -- what there is to tell

const char* fake_stats() {
  static char text[512];
  Lock lock(mutex_);
  snprintf(
      text, sizeof text, "{\"graphs\":%ld,\"nodes\":%ld,\"launches\":%ld,\"violations\":%ld,\"full_queues\":%ld}",
      num_graphs, num_nodes, num_launches, num_violations, num_full_queues);
  return text;
}

}  // extern "C"
