#include "core/io/safetensors.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <random>

#include <sys/resource.h>

#include "core/io/file.h"
#include "tests/fuzz/mutated.h"
#include "tests/fuzz/safetensors.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using Catch::StartsWith;

namespace {

struct Safetensors {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

// All tensors: those at odd addresses are copied, all others are views of the mapped file.
Safetensors read_safetensors(const Path& path) {
  StoredSafetensors stored = open_safetensors(path);
  Safetensors result;
  result.metadata = std::move(stored.metadata);
  for (const auto& [name, tensor] : stored.tensors) result.tensors.emplace(name, tensor.read());
  return result;
}

// A file with this header and `data_bytes` of data.
std::string file_of(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return file + header + std::string(data_bytes, '\1');
}

std::string error_reading(const std::string& content) {
  const Scratch scratch;
  return error_of([&] { read_safetensors(scratch.put("bad.safetensors", content)); });
}

std::map<std::string, Tensor> some_tensors() {
  std::map<std::string, Tensor> tensors;
  tensors["f32"] = Tensor::of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  tensors["f64"] = Tensor::of<double>({0.1, -0.2}, {2});
  tensors["bf16"] = Tensor::of<float>({1.5F, -2}, {2, 1}).to(DType::bf16);
  tensors["f16"] = Tensor::of<float>({0.25F}, {}).to(DType::f16);
  tensors["i32"] = Tensor::of<int32_t>({-7, 8}, {2});
  tensors["i64"] = Tensor::of<int64_t>({int64_t{1} << 60}, {1});
  tensors["u8"] = Tensor::of<uint8_t>({0, 255, 3}, {3});
  Tensor flags(TensorType{DType::boolean, {3}});
  for (int i = 0; i < 3; ++i) flags.set(i, i == 1 ? 1 : 0);
  tensors["bool"] = flags;
  tensors["nothing"] = Tensor(TensorType{DType::f32, {0, 4}});
  return tensors;
}

void check_equal(const Tensor& a, const Tensor& b) {
  REQUIRE(a.type() == b.type());
  if (a.elements() > 0) CHECK(std::memcmp(a.bytes(), b.bytes(), static_cast<size_t>(a.type().bytes())) == 0);
}

}  // namespace

TEST_CASE("every dtype, scalars and empty tensors survive safetensors") {
  const Scratch scratch;
  const auto tensors = some_tensors();
  const std::string path = scratch.path("model.safetensors");
  write_safetensors(path, tensors, {{"format", "pt"}});
  const Safetensors back = read_safetensors(path);
  CHECK(back.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(back.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    check_equal(back.tensors.at(name), tensor);
    CHECK(reinterpret_cast<uintptr_t>(back.tensors.at(name).bytes()) %
              static_cast<uintptr_t>(bytes_of(tensor.dtype())) ==
          0);
  }
  CHECK(read_safetensors(scratch.folder()).tensors.size() == tensors.size());
}

TEST_CASE("tensors read from a file outlive everything else of it, and are private") {
  const Scratch scratch;
  const std::string path = scratch.path("model.safetensors");
  write_safetensors(path, some_tensors());
  Tensor one = read_safetensors(path).tensors.at("f32");
  CHECK(one.at(5) == 6);
  one.set(5, 60);
  CHECK(read_safetensors(path).tensors.at("f32").at(5) == 6);
  write_safetensors(path, {{"other", Tensor::of<float>({1}, {1})}});
  CHECK(one.at(0) == 1);
}

TEST_CASE("a strided tensor is saved packed") {
  const Scratch scratch;
  const Tensor matrix = Tensor::of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const std::string path = scratch.path("t.safetensors");
  write_safetensors(path, {{"turned", matrix.view(permuted(matrix.layout(), {1, 0}))}});
  check_equal(read_safetensors(path).tensors.at("turned"), Tensor::of<float>({1, 4, 2, 5, 3, 6}, {3, 2}));
}

TEST_CASE("tensors at odd addresses are read all the same") {
  const Scratch scratch;
  std::string file = file_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )", 0);
  const float value = 3.5F;
  REQUIRE(file.size() % 4 != 0);
  file.append(reinterpret_cast<const char*>(&value), 4);
  CHECK(read_safetensors(scratch.put("x.safetensors", file)).tensors.at("x").at(0) == 3.5);
}

TEST_CASE("headers that lie are refused, naming the file and the tensor") {
  CHECK_THAT(error_reading(""), StartsWith("usage: ") && Contains("bad.safetensors") && Contains("0 bytes"));
  CHECK_THAT(error_reading("short"), Contains("truncated"));
  CHECK_THAT(error_reading(std::string(8, '\xff') + "{}"), Contains("not a safetensors file"));
  CHECK_THAT(error_reading(file_of("{}", 0).substr(0, 9)),
             Contains("is truncated: its header says it takes 2 bytes, but only 1"));
  CHECK_THAT(error_reading(file_of("", 0)), Contains("does not begin with '{'"));
  CHECK_THAT(error_reading(file_of("[]", 0)), Contains("does not begin with '{'"));
  CHECK_THAT(error_reading(file_of("{\"a\":", 0)), Contains("not valid JSON"));
  CHECK_THAT(error_reading(file_of(std::string(5000, '{'), 0)), Contains("not valid JSON"));
  CHECK_THAT(error_reading(file_of(R"({"a":{"dtype":"F32","shape":[[[[1]]]],"data_offsets":[0,4]}})", 4)),
             Contains("nested more than 3"));
  CHECK_THAT(error_reading(file_of("{}", 3)), Contains("3 bytes at the end belong to no tensor"));
  CHECK(error_reading(file_of("{}", 0)) == "none");

  struct Lie {
    const char* entry;
    const char* answer;
  };
  for (const Lie& lie : {
           Lie{R"(7)", "is not described by a JSON object"},
           Lie{R"({"shape":[2],"data_offsets":[0,8]})", "has no 'dtype'"},
           Lie{R"({"dtype":"F32","data_offsets":[0,8]})", "has no 'shape'"},
           Lie{R"({"dtype":"F32","shape":[2]})", "has no 'data_offsets'"},
           Lie{R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})", "has dtype 'F31'; F64, F32"},
           Lie{R"({"dtype":3,"shape":[2],"data_offsets":[0,8]})", "has a 'dtype' that is no text"},
           Lie{R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "has a 'shape' that is no list"},
           Lie{R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "has -2 in its 'shape'"},
           Lie{R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "has 2.0 in its 'shape'"},
           Lie{R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", "has 1 data_offsets instead of two"},
           Lie{R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "has the data_offsets [8, 0]"},
           Lie{R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})",
               "the file has 8 bytes of data; it may be truncated"},
           Lie{R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]})",
               "whole numbers from 0"},
           Lie{R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", "is f32[3], which takes 12 bytes"},
           Lie{R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})",
               "more bytes than there are numbers for"},
           Lie{R"({"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]})",
               "more bytes than there are numbers for"},
           Lie{R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1})",
               "has the unknown field 'extra'"},
       }) {
    const std::string error = error_reading(file_of(fmt::format(R"({{"wte.weight":{}}})", lie.entry), 8));
    CHECK_THAT(error, StartsWith("usage: ") && Contains("bad.safetensors': tensor 'wte.weight' ") &&
                          Contains(lie.answer));
  }
}

TEST_CASE("tensors may neither overlap nor leave bytes over, and names stand once") {
  const auto entry = [](const char* name, int begin, int end) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name, end - begin,
                       begin, end);
  };
  const auto error = [&](const std::string& a, const std::string& b) {
    return error_reading(file_of("{" + a + "," + b + "}", 8));
  };
  CHECK(error(entry("b", 4, 8), entry("a", 0, 4)) == "none");
  CHECK_THAT(error(entry("a", 0, 5), entry("b", 4, 8)), Contains("tensors 'a' and 'b' overlap at byte 4"));
  CHECK_THAT(error(entry("a", 0, 8), entry("b", 0, 8)), Contains("overlap"));
  CHECK_THAT(error(entry("a", 0, 3), entry("b", 4, 8)),
             Contains("bytes 3 to 4 of the data, before tensor 'b', belong to no tensor"));
  CHECK_THAT(error(entry("a", 0, 4), entry("b", 4, 7)), Contains("1 bytes at the end belong to no tensor"));
  CHECK_THAT(error(entry("a", 0, 4), entry("a", 4, 8)), Contains("the key 'a' stands twice"));
}

TEST_CASE("metadata is text, and BOOL is 0 or 1") {
  CHECK_THAT(error_reading(file_of(R"({"__metadata__":{"a":1}})", 0)),
             Contains("the metadata 'a' is no text"));
  CHECK_THAT(error_reading(file_of(R"({"__metadata__":[]})", 0)),
             Contains("'__metadata__' is no JSON object"));
  std::string file = file_of(R"({"mask":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2);
  CHECK(error_reading(file) == "none");
  file.back() = '\2';
  CHECK_THAT(error_reading(file), Contains("tensor 'mask' is BOOL but holds bytes other than 0 and 1"));
}

TEST_CASE("a file cut anywhere is refused") {
  const Scratch scratch;
  write_safetensors(scratch.path("whole"), some_tensors(), {{"format", "pt"}});
  const std::string whole = read_file(scratch.path("whole"));
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    if (error_of([&] {
          parse_safetensors_header(whole.substr(0, bytes), static_cast<int64_t>(bytes), "cut");
        }).rfind("usage: ", 0) != 0)
      FAIL("cut to " << bytes << " bytes, it was taken");
}

TEST_CASE("mutated headers are refused or sound, never believed") {
  const Scratch scratch;
  write_safetensors(scratch.path("whole"), some_tensors(), {{"format", "pt"}});
  const std::string whole = read_file(scratch.path("whole"));
  std::mt19937 random(20240520);
  const int accepted = fuzz::accepted(20000, whole, random, "0123456789{}[],:\"-", fuzz::safetensors_header);
  CHECK(accepted > 0);  // changes of names and data are harmless
  CHECK(accepted < 15000);
}

TEST_CASE("shards listed in an index are read as one model") {
  const Scratch scratch;
  const Tensor a = Tensor::of<float>({1, 2}, {2}), b = Tensor::of<float>({3}, {1});
  write_safetensors(scratch.path("model-1.safetensors"), {{"a", a}});
  write_safetensors(scratch.path("model-2.safetensors"), {{"b", b}});
  const std::string index =
      scratch.put("model.safetensors.index.json",
                  R"({"metadata":{},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})");
  for (const std::string& path : {index, scratch.folder()}) {
    const Safetensors model = read_safetensors(path);
    REQUIRE(model.tensors.size() == 2);
    check_equal(model.tensors.at("a"), a);
    check_equal(model.tensors.at("b"), b);
  }
  const auto error = [&](const std::string& map) {
    return error_of(
        [&] { read_safetensors(scratch.put("bad.index.json", R"({"weight_map":)" + map + "}")); });
  };
  CHECK_THAT(error(R"({"c":"model-1.safetensors"})"),
             Contains("tensor 'c' is said to stand in 'model-1.safetensors', but it does not"));
  CHECK_THAT(error(R"({"a":"model-3.safetensors"})"), Contains("there is no file"));
  CHECK_THAT(error(R"({"a":"../model-1.safetensors"})"), Contains("the name of a file beside the index"));
  CHECK_THAT(error("3"), Contains("no 'weight_map'"));
  write_safetensors(scratch.path("model-2.safetensors"), {{"a", b}});
  CHECK_THAT(error(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})"),
             Contains("'a' stands in more than one file"));
}

TEST_CASE("a folder without a model is refused") {
  const Scratch scratch;
  CHECK_THAT(error_of([&] { read_safetensors(scratch.folder()); }),
             Contains("holds neither model.safetensors nor"));
}

TEST_CASE("a save that cannot finish keeps the previous model") {
  const Scratch scratch;
  const std::string path = scratch.path("model.safetensors");
  write_safetensors(path, {{"x", Tensor::of<float>({1}, {1})}});
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string error = error_of([&] {
    write_safetensors(path, {{"x", Tensor::zeros({DType::f32, {5000}})}});
  });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK_THAT(error, StartsWith("environment: ") && Contains("the previous file is kept"));
  CHECK(read_safetensors(path).tensors.at("x").at(0) == 1);
  CHECK_THAT(error_of([&] {
               write_safetensors(path, {{"__metadata__", Tensor::of<float>({1}, {1})}});
             }),
             StartsWith("usage: "));
}
