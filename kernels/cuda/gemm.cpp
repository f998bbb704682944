// Products by cuBLASLt, which is opened when the first one is prepared. Which of its algorithms is the
// fastest is measured once for each product, and remembered: in memory, and in the user's cache folder for
// each GPU and version of the library, so that later runs take the same one and get the same bits.
#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <cublasLt.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "kernels/cuda/library.h"

namespace het::HET_CUDA {
namespace {

constexpr const char* kFile = "libcublasLt.so.13";
constexpr size_t kMostWorkspace = size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr int kCandidates = 8;
constexpr uint32_t kAlign = 16;  // bytes: no kernel of the library asks for more
constexpr size_t kMostRemembered = 10'000;

// The functions used here, under their own names.
struct Functions {
  decltype(&::cublasLtCreate) cublasLtCreate;
  decltype(&::cublasLtDestroy) cublasLtDestroy;
  decltype(&::cublasLtGetVersion) cublasLtGetVersion;
  decltype(&::cublasLtGetStatusString) cublasLtGetStatusString;
  decltype(&::cublasLtMatmul) cublasLtMatmul;
  decltype(&::cublasLtMatmulAlgoCheck) cublasLtMatmulAlgoCheck;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) cublasLtMatmulAlgoGetHeuristic;
  decltype(&::cublasLtMatmulDescInit_internal) cublasLtMatmulDescInit_internal;
  decltype(&::cublasLtMatmulDescSetAttribute) cublasLtMatmulDescSetAttribute;
  decltype(&::cublasLtMatrixLayoutInit_internal) cublasLtMatrixLayoutInit_internal;
  decltype(&::cublasLtMatrixLayoutSetAttribute) cublasLtMatrixLayoutSetAttribute;
  decltype(&::cublasLtMatmulPreferenceInit_internal) cublasLtMatmulPreferenceInit_internal;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) cublasLtMatmulPreferenceSetAttribute;
};

// The name of the first function that is missing; null: none is.
const char* find_functions(void* handle, Functions& f) {
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  find(f.cublasLtCreate, "cublasLtCreate");
  find(f.cublasLtDestroy, "cublasLtDestroy");
  find(f.cublasLtGetVersion, "cublasLtGetVersion");
  find(f.cublasLtGetStatusString, "cublasLtGetStatusString");
  find(f.cublasLtMatmul, "cublasLtMatmul");
  find(f.cublasLtMatmulAlgoCheck, "cublasLtMatmulAlgoCheck");
  find(f.cublasLtMatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(f.cublasLtMatmulDescInit_internal, "cublasLtMatmulDescInit_internal");
  find(f.cublasLtMatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute");
  find(f.cublasLtMatrixLayoutInit_internal, "cublasLtMatrixLayoutInit_internal");
  find(f.cublasLtMatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute");
  find(f.cublasLtMatmulPreferenceInit_internal, "cublasLtMatmulPreferenceInit_internal");
  find(f.cublasLtMatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute");
  return missing;
}

// As it numbers itself: 130100 is 13.1.0.
std::string version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

struct Opened {
  OpenLibrary library;
  Functions functions{};
  size_t version = 0;
};

Opened open_cublas() {
  Opened opened{open_library(kFile)};
  if (opened.library.handle == nullptr) return opened;
  if (const char* missing = find_functions(opened.library.handle, opened.functions)) {
    opened.library.problem = fmt::format("{} has no function {}", opened.library.path, missing);
    return opened;
  }
  opened.version = opened.functions.cublasLtGetVersion();
  if (opened.version / 10000 != CUBLAS_VER_MAJOR)
    opened.library.problem = fmt::format("{} is version {}; this build needs {}", opened.library.path,
                                         version_text(opened.version), CUBLAS_VER_MAJOR);
  return opened;
}

// An algorithm, as the library describes it.
using Algorithm = cublasLtMatmulAlgo_t;

std::string hex_of(const Algorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}
bool from_hex(const std::string& text, Algorithm& algorithm) {
  if (text.size() != 16 * std::size(algorithm.data) ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  for (size_t i = 0; i < std::size(algorithm.data); ++i)
    algorithm.data[i] = std::stoull(text.substr(16 * i, 16), nullptr, 16);
  return true;
}

// Empty where there is no home.
std::string cache_path() {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/products.json";
}

// Everything of a product that the choice depends on.
std::string key_of(const Product& p, uint32_t align) {
  const auto matrix = [](DType dtype, bool transposed, int64_t lead, int64_t step) {
    return fmt::format("{}{}/{}/{}", dtype, transposed ? "'" : "", lead, step);
  };
  constexpr const char* kEpilogues[] = {"", " gelu", " gelu kept", " gelu'"};
  return fmt::format("{} x {} x {} x {}: {} {} {}{}{}{}, aligned to {}", p.batch, p.m, p.n, p.k,
                     matrix(p.a, p.transposed_a, p.lead_a, p.step_a),
                     matrix(p.b, p.transposed_b, p.lead_b, p.step_b), matrix(p.c, false, p.lead_c, p.step_c),
                     p.beta != 0 ? " +=" : "", p.bias ? " bias" : "",
                     kEpilogues[static_cast<size_t>(p.epilogue)], align);
}

// Held by one process at a time.
class FileLock {
 public:
  explicit FileLock(const std::string& path)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (file_ >= 0) ::flock(file_, LOCK_EX);
  }
  ~FileLock() {
    if (file_ >= 0) ::close(file_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

// The library for one device: its handle, and the algorithms known for this GPU.
class Products {
 public:
  explicit Products(int ordinal) : opened_(open_cublas()) {
    if (!opened_.library.problem.empty()) fail_environment("cuBLASLt: {}", opened_.library.problem);
    check(functions().cublasLtCreate(&handle_), "start");
    cudaDeviceProp properties{};
    het::HET_CUDA::check(cudaGetDeviceProperties(&properties, ordinal), "say what it is");
    gpu_ = fmt::format("{}, cuBLASLt {}", properties.name, version_text(opened_.version));
    read();
  }
  ~Products() { functions().cublasLtDestroy(handle_); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  const Functions& functions() const { return opened_.functions; }
  cublasLtHandle_t handle() const { return handle_; }

  void check(cublasStatus_t status, const char* what) const {
    if (status != CUBLAS_STATUS_SUCCESS)
      fail_environment("cuBLASLt could not {}: {}", what, functions().cublasLtGetStatusString(status));
  }

  const Algorithm* known(const std::string& key) const {
    const auto found = algorithms_.find(key);
    return found == algorithms_.end() ? nullptr : &found->second;
  }
  // What is known from here on: of ranks that measure at once the first decides, so that all of them, and
  // those that come later, compute the same bits. Failing to write is no failure.
  Algorithm remember(const std::string& key, const Algorithm& algorithm) {
    const std::string path = cache_path();
    try {
      std::filesystem::create_directories(std::filesystem::path(path).parent_path());
      const FileLock lock(path + ".lock");
      read();
      const auto [known, fresh] = algorithms_.emplace(key, algorithm);
      if (!fresh) return known->second;
      Json of_gpus = all();
      of_gpus.erase(gpu_);
      Json& own = of_gpus[gpu_];
      for (const auto& [name, chosen] : algorithms_) own[name] = hex_of(chosen);
      write_json(path, of_gpus);
    } catch (const std::exception&) {
    }
    return algorithms_.emplace(key, algorithm).first->second;
  }

 private:
  static Json all() {
    try {
      const Json json = read_json(cache_path());
      if (json.is_object()) return json;
    } catch (const Error&) {  // missing, or not ours
    }
    return Json::object();
  }
  void read() {
    const Json file = cache_path().empty() ? Json::object() : all();
    for (const auto& [name, products] : file.items()) {
      if (name != gpu_ || !products.is_object() || as_object(products)->size() > kMostRemembered) continue;
      for (const auto& [key, text] : *as_object(products))
        if (Algorithm algorithm; as_string(text) != nullptr && from_hex(*as_string(text), algorithm))
          algorithms_.emplace(key, algorithm);
    }
  }

  Opened opened_;
  cublasLtHandle_t handle_ = nullptr;
  std::string gpu_;
  std::map<std::string, Algorithm> algorithms_;
};

std::shared_ptr<Products> products_of(const Context& context) {
  if (context.products == nullptr) context.products = std::make_shared<Products>(context.ordinal);
  return std::static_pointer_cast<Products>(context.products);
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: fail(ErrorKind::bug, "a product of {} by cuBLASLt", dtype);
  }
}

// Memory for the time of a measurement; null where there is too little.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    if (cudaMalloc(&address_, std::max<size_t>(bytes, 1)) != cudaSuccess) {
      address_ = nullptr;
      cudaGetLastError();  // forget it
    }
  }
  ~Scratch() { cudaFree(address_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::byte* address() const { return static_cast<std::byte*>(address_); }

 private:
  void* address_ = nullptr;
};

class Events {
 public:
  Events() {
    check(cudaEventCreateWithFlags(&begin_, cudaEventDefault), "make an event");
    check(cudaEventCreateWithFlags(&end_, cudaEventDefault), "make an event");
  }
  ~Events() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  template <typename Work>
  double seconds(cudaStream_t stream, const Work& work) {
    check(cudaEventRecord(begin_, stream), "record an event");
    work();
    check(cudaEventRecord(end_, stream), "record an event");
    check(cudaEventSynchronize(end_), "finish a product");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "tell the time");
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Row-major matrices are the library's column-major ones transposed, so that it computes c^T = b^T a^T: its
// first operand is our b, its rows are our columns. Its bias runs along its rows, as ours along columns.
class LtGemm final : public Gemm {
 public:
  LtGemm(const Context& context, const Product& product)
      : context_(context), p_(product), products_(products_of(context)) {
    describe();
    aligned_ = choose(kAlign);
    // For operands that begin anywhere else; rare, so that the library's own guess will do.
    if (p_.epilogue == Epilogue::none)
      any_ = choose(static_cast<uint32_t>(std::min({bytes_of(p_.a), bytes_of(p_.b), bytes_of(p_.c)})));
    bias_bytes_ = p_.bias ? (p_.n * bytes_of(p_.c) + 255) / 256 * 256 : 0;
  }

  // Whether there is an algorithm for operands at multiples of kAlign; always without an epilogue.
  bool found() const { return aligned_.found; }

  // The library wants its part at a multiple of 256 bytes.
  int64_t workspace_bytes() const override {
    return bias_bytes_ + static_cast<int64_t>(std::max(aligned_.workspace, any_.workspace)) + 255;
  }

  void run(const ProductOperands& o, std::byte* workspace) override {
    std::byte* space =
        workspace + (256 - reinterpret_cast<uintptr_t>(workspace) % 256) % 256;  // bias, then the library's
    const void* added = o.bias;
    if (p_.bias && (p_.c != DType::f32 || reinterpret_cast<uintptr_t>(o.bias) % kAlign != 0)) {
      convert_bias(context_, o.bias, p_.c, space, p_.n);
      added = space;
    }
    const uintptr_t bits = reinterpret_cast<uintptr_t>(o.a) | reinterpret_cast<uintptr_t>(o.b) |
                           reinterpret_cast<uintptr_t>(o.c) | reinterpret_cast<uintptr_t>(o.beside);
    const Choice& choice = bits % kAlign == 0 ? aligned_ : any_;
    if (!choice.found)
      fail_environment("cuBLASLt has no algorithm for the product {} of operands at odd addresses",
                       key_of(p_, kAlign));
    products_->check(multiply(choice, o.a, o.b, o.c, added, o.beside, space + bias_bytes_), "multiply");
  }

 private:
  struct Choice {
    Algorithm algorithm;
    size_t workspace = 0;
    bool found = false;
  };

  void describe() {
    const Functions& f = products_->functions();
    products_->check(
        f.cublasLtMatmulDescInit_internal(&operation_, sizeof operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "describe a product");
    const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
      products_->check(f.cublasLtMatmulDescSetAttribute(&operation_, what, &value, sizeof value),
                       "describe a product");
    };
    const auto transposed = [](bool yes) { return static_cast<int32_t>(yes ? CUBLAS_OP_T : CUBLAS_OP_N); };
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed(p_.transposed_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, transposed(p_.transposed_a));
    if (const uint32_t epilogue = epilogue_of(p_); epilogue != CUBLASLT_EPILOGUE_DEFAULT)
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    // Heuristics read the alignment to expect from the addresses: no more than run() promises.
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it is never dereferenced.
    const void* const aligned_so = reinterpret_cast<const void*>(uintptr_t{kAlign});
    if (p_.bias) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(p_.c)));
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned_so);
    }
    if (has_beside()) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{p_.lead_c});
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned_so);
    }
    describe(first_, p_.b, p_.transposed_b ? p_.k : p_.n, p_.transposed_b ? p_.n : p_.k, p_.lead_b,
             p_.step_b);
    describe(second_, p_.a, p_.transposed_a ? p_.m : p_.k, p_.transposed_a ? p_.k : p_.m, p_.lead_a,
             p_.step_a);
    describe(result_, p_.c, p_.n, p_.m, p_.lead_c, p_.step_c);
  }

  static uint32_t epilogue_of(const Product& p) {
    switch (p.epilogue) {
      case Epilogue::gelu: return p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
      case Epilogue::gelu_kept: return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      case Epilogue::gelu_gradient: return CUBLASLT_EPILOGUE_DGELU;
      case Epilogue::none: break;
    }
    return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
  bool has_beside() const {
    return p_.epilogue == Epilogue::gelu_kept || p_.epilogue == Epilogue::gelu_gradient;
  }

  void describe(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, int64_t rows, int64_t columns,
                int64_t lead, int64_t step) {
    const Functions& f = products_->functions();
    products_->check(f.cublasLtMatrixLayoutInit_internal(&layout, sizeof layout, type_of(dtype),
                                                         static_cast<uint64_t>(rows),
                                                         static_cast<uint64_t>(columns), lead),
                     "describe a matrix");
    if (p_.batch == 1) return;
    const auto count = static_cast<int32_t>(p_.batch);
    products_->check(
        f.cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "describe a batch of matrices");
    products_->check(f.cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                        &step, sizeof step),
                     "describe a batch of matrices");
  }

  cublasStatus_t multiply(const Choice& choice, const void* a, const void* b, void* c, const void* bias,
                          const void* beside, std::byte* workspace) {
    const Functions& f = products_->functions();
    const auto point = [&](cublasLtMatmulDescAttributes_t what, const void* address) {
      return f.cublasLtMatmulDescSetAttribute(&operation_, what, &address, sizeof address);
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (p_.bias) status = point(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (has_beside() && status == CUBLAS_STATUS_SUCCESS)
      status = point(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, beside);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return f.cublasLtMatmul(products_->handle(), &operation_, &p_.alpha, b, &first_, a, &second_, &p_.beta, c,
                            &result_, c, &result_, &choice.algorithm, workspace, choice.workspace,
                            context_.stream);
  }

  // The algorithm for operands at multiples of `align` bytes.
  Choice choose(uint32_t align) {
    const Functions& f = products_->functions();
    const std::string key = key_of(p_, align);
    const auto usable = [&](const Algorithm& known) -> std::optional<Choice> {
      cublasLtMatmulHeuristicResult_t result{};
      if (f.cublasLtMatmulAlgoCheck(products_->handle(), &operation_, &first_, &second_, &result_, &result_,
                                    &known, &result) == CUBLAS_STATUS_SUCCESS &&
          result.workspaceSize <= kMostWorkspace)
        return Choice{known, result.workspaceSize, true};
      return std::nullopt;
    };
    if (const Algorithm* known = products_->known(key))
      if (const auto choice = usable(*known)) return *choice;
    const auto candidates = candidates_for(align, align == kAlign ? kCandidates : 1);
    if (candidates.empty()) return {};
    // What cannot be remembered is not measured: two runs would not have the same bits.
    if (candidates.size() == 1 || cache_path().empty()) return candidates.front();
    const Choice* best = fastest(candidates);
    if (best == nullptr && p_.epilogue != Epilogue::none) return {};  // there is another way
    const Choice own = best == nullptr ? candidates.front() : *best;
    return usable(products_->remember(key, own.algorithm)).value_or(own);
  }

  // What the library expects to be fast, the best first.
  std::vector<Choice> candidates_for(uint32_t align, int count) {
    const Functions& f = products_->functions();
    cublasLtMatmulPreferenceOpaque_t preference;
    products_->check(f.cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference),
                     "choose an algorithm");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      products_->check(f.cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof value),
                       "choose an algorithm");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kMostWorkspace});
    // Parts of a split sum are added in f32, in a fixed order.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(operand, align);
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
    int found = 0;
    const cublasStatus_t status =
        f.cublasLtMatmulAlgoGetHeuristic(products_->handle(), &operation_, &first_, &second_, &result_,
                                         &result_, &preference, count, results.data(), &found);
    std::vector<Choice> choices;
    for (int i = 0; i < found; ++i)
      if (results[i].state == CUBLAS_STATUS_SUCCESS)
        choices.push_back({results[i].algo, results[i].workspaceSize, true});
    if (choices.empty() && align == kAlign && p_.epilogue == Epilogue::none)
      fail_environment("cuBLASLt has no algorithm for the product {} ({})", key_of(p_, align),
                       f.cublasLtGetStatusString(status));
    return choices;
  }

  // Measured on memory of the product's size; null where there is not enough, or nothing runs.
  const Choice* fastest(const std::vector<Choice>& candidates) {
    const auto bytes = [this](DType dtype, bool transposed, int64_t rows, int64_t columns, int64_t lead,
                              int64_t step) {
      const int64_t elements =
          (p_.batch - 1) * step + ((transposed ? columns : rows) - 1) * lead + (transposed ? rows : columns);
      return static_cast<size_t>((elements * bytes_of(dtype) + 255) / 256 * 256);
    };
    const size_t a_bytes = bytes(p_.a, p_.transposed_a, p_.m, p_.k, p_.lead_a, p_.step_a),
                 b_bytes = bytes(p_.b, p_.transposed_b, p_.k, p_.n, p_.lead_b, p_.step_b),
                 c_bytes = bytes(p_.c, false, p_.m, p_.n, p_.lead_c, p_.step_c),
                 beside_bytes = has_beside() ? c_bytes : 0, bias_bytes = static_cast<size_t>(p_.n) * 4 + 256,
                 operands = a_bytes + b_bytes + c_bytes + beside_bytes;
    const Scratch scratch(operands + bias_bytes + 256 + kMostWorkspace);
    if (scratch.address() == nullptr) return nullptr;
    std::byte *a = scratch.address(), *b = a + a_bytes, *c = b + b_bytes, *beside = c + c_bytes,
              *bias = beside + beside_bytes, *workspace = bias + (bias_bytes + 255) / 256 * 256;
    // 0x3c3c is a small positive number in every type: zeros would take less power, and so less time.
    check(cudaMemsetAsync(a, 0x3c, operands + bias_bytes, context_.stream), "set memory");
    Events events;
    const Choice* best = nullptr;
    double best_seconds = 0;
    constexpr double kSlice = 1e-3;  // seconds, of a round
    constexpr int kRounds = 3, kMostRuns = 20;
    for (const Choice& candidate : candidates) {
      const auto once = [&] { return multiply(candidate, a, b, c, bias, beside, workspace); };
      if (once() != CUBLAS_STATUS_SUCCESS) continue;  // loads its code
      double seconds = events.seconds(context_.stream, once);
      const int runs = std::clamp(static_cast<int>(kSlice / std::max(seconds, 1e-9)), 1, kMostRuns);
      for (int round = 0; round < kRounds; ++round)
        seconds = std::min(seconds, events.seconds(context_.stream, [&] {
          for (int run = 0; run < runs; ++run) once();
        }) / runs);
      if (best != nullptr && seconds >= best_seconds) continue;
      best = &candidate;
      best_seconds = seconds;
    }
    return best;
  }

  const Context& context_;
  Product p_;
  std::shared_ptr<Products> products_;
  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t first_, second_, result_;
  Choice aligned_, any_;
  int64_t bias_bytes_ = 0;
};

// k = 0: what was there, scaled, and the bias. Or nothing at all.
class NoTerms final : public Gemm {
 public:
  NoTerms(const Context& context, const Product& product) : context_(context), p_(product) {}
  void run(const ProductOperands& o, std::byte*) override { run_without_terms(context_, p_, o.c, o.bias); }

 private:
  const Context& context_;
  Product p_;
};

}  // namespace

std::unique_ptr<Gemm> make_gemm(const Context& context, const Product& product) {
  if (product.epilogue != Epilogue::none) {
    if (!may_have_epilogue(product)) return nullptr;
    auto gemm = std::make_unique<LtGemm>(context, product);
    return gemm->found() ? std::move(gemm) : nullptr;
  }
  if (product.m == 0 || product.n == 0 || product.k == 0 || product.batch == 0)
    return std::make_unique<NoTerms>(context, product);
  return std::make_unique<LtGemm>(context, product);
}

LibraryReport find_cublas() {
  const Opened opened = open_cublas();
  return {"cuBLASLt", opened.library.path, opened.version == 0 ? "" : version_text(opened.version),
          opened.library.problem};
}

}  // namespace het::HET_CUDA
