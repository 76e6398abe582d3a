// cuBLAS and cuBLASLt without a GPU: matrix products that take the time of their sizes and compute nothing.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" int fake_launch(void* stream, double seconds);
extern "C" double fake_slower();

namespace {

constexpr double kFlopsPerS = 7.0e14, kBytesPerS = 2.7e12, kMinS = 2.5e-6;

double gemm_s(double m, double n, double k, double batch = 1) {
  double flops_s = 2 * m * n * k * batch / kFlopsPerS, bytes_s = 2 * (m * k + k * n + m * n) * batch / kBytesPerS;
  return fake_slower() * std::max({kMinS, flops_s, bytes_s});
}

struct Handle {
  void* stream;
};

}  // namespace

extern "C" {

int cublasCreate_v2(void** out) {
  *out = calloc(1, sizeof(Handle));
  return 0;
}
int cublasSetStream_v2(void* handle, void* stream) {
  ((Handle*)handle)->stream = stream;
  return 0;
}
int cublasGetMathMode(void*, int* out) {
  *out = 0;
  return 0;
}
int cublasGetPointerMode_v2(void*, int* out) {
  *out = 0;
  return 0;
}
int cublasGemmEx(
    void* handle, int, int, int m, int n, int k, const void*, const void*, int, int, const void*, int, int, const void*,
    void*, int, int, int, int) {
  return fake_launch(((Handle*)handle)->stream, gemm_s(m, n, k));
}
int cublasGemmStridedBatchedEx(
    void* handle, int, int, int m, int n, int k, const void*, const void*, int, int, long long, const void*, int, int,
    long long, const void*, void*, int, int, long long, int batch, int, int) {
  return fake_launch(((Handle*)handle)->stream, gemm_s(m, n, k, batch));
}
int cublasSgemm_v2(
    void* handle, int, int, int m, int n, int k, const void*, const void*, int, const void*, int, const void*, void*,
    int) {
  return fake_launch(((Handle*)handle)->stream, gemm_s(m, n, k));
}
size_t cublasLtGetVersion() { return 130000; }
int cublasLtMatmulDescCreate(void** out, int, int) {
  *out = calloc(1, 8);
  return 0;
}
int cublasLtMatmulPreferenceCreate(void** out) {
  *out = calloc(1, 8);
  return 0;
}
int cublasLtMatrixLayoutCreate(uint64_t** out, int, uint64_t rows, uint64_t columns, int64_t) {
  *out = (uint64_t*)malloc(2 * sizeof(uint64_t));
  (*out)[0] = rows;
  (*out)[1] = columns;
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(
    void*, void*, void*, void*, void*, void*, void*, int, void* results, int* num_results) {
  memset(results, 0, 96);
  *num_results = 1;
  return 0;
}
int cublasLtMatmul(
    void*, void*, const void*, const void*, uint64_t* a, const void*, uint64_t*, const void*, const void*, uint64_t*,
    void*, uint64_t* out, const void*, void*, size_t, void* stream) {
  double m = out[0], n = out[1];
  return fake_launch(stream, gemm_s(m, n, double(a[0]) * a[1] / m));
}

}  // extern "C"
