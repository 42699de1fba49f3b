// ctest-labels: fuzz
#include "dovetail/io/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "tests/fuzz.h"

namespace dovetail::io::safetensors_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path fixture(const std::string& name) {
  const char* data = std::getenv("DOVETAIL_TEST_DATA");
  return fs::path(data ? data : "tests/data_files") / "safetensors" / name;
}

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("dovetail-safetensors-{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

/// A file of bytes: little-endian length, header, data.
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\0');
}

std::string refusal(std::string_view bytes) {
  try {
    const SafetensorsFile file(bytes, "x.safetensors");
    return "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("x.safetensors"));
    EXPECT_FALSE(error.help().empty());
    return error.what();
  }
}

void expect_same(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.scalar_type(), b.scalar_type());
  ASSERT_EQ(a.sizes(), b.sizes());
  const auto x = a.contiguous(), y = b.contiguous();
  if (x.nbytes() == 0) return;
  EXPECT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()), 0);
}

const std::vector<std::pair<std::string, at::ScalarType>> kDtypes = {
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2}};

TEST_F(Safetensors, ReadsEveryDtypeOfThePythonPackage) {
  const SafetensorsFile file(fixture("dtypes.safetensors"));
  ASSERT_EQ(file.names().size(), kDtypes.size());
  const auto values = torch::arange(6).reshape({2, 3});
  for (const auto& [name, dtype] : kDtypes) {
    EXPECT_EQ(file.dtype("t." + name), dtype);
    expect_same(file.read("t." + name), values.to(dtype));
  }
}

TEST_F(Safetensors, ReadsOddShapesAndNames) {
  const SafetensorsFile file(fixture("shapes.safetensors"));
  EXPECT_THAT(file.names(),
              ::testing::ElementsAre("a", "b", "empty", "odd \"name\"\n\u00e9", "scalar"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.read("scalar").item<float>(), 2.5f);
  EXPECT_EQ(file.shape("empty"), (std::vector<int64_t>{3, 0, 2}));
  expect_same(file.read("a"), torch::arange(6, at::kFloat).reshape({2, 1, 3}));
  expect_same(file.read("b"), torch::arange(5, at::kDouble) / 4);
  expect_same(file.read("odd \"name\"\n\u00e9"), torch::arange(7, at::kByte));
}

TEST_F(Safetensors, NamesTypesThatAreNotOursAsUnsupportedNotAsDamage) {
  for (const auto* dtype :
       {"F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "U16", "U32", "U64", "C64"}) {
    const auto header =
        fmt::format(R"({{"w":{{"dtype":"{}","shape":[8],"data_offsets":[0,8]}}}})", dtype);
    try {
      const auto bytes = file_of(header, 8);
      const SafetensorsFile file(bytes, "x.safetensors");
      ADD_FAILURE() << dtype;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what())
                    .find(fmt::format("x.safetensors: tensor 'w' has dtype {}, ", dtype)),
                0u);
      EXPECT_THAT(error.what(), HasSubstr("not supported"));
      EXPECT_THAT(error.help(), ::testing::Not(HasSubstr("damaged")));
    }
  }
  const auto unknown =
      refusal(file_of(R"({"w":{"dtype":"F99","shape":[8],"data_offsets":[0,8]}})", 8));
  EXPECT_THAT(unknown,
              ::testing::AllOf(HasSubstr("not a usable safetensors file"), HasSubstr("'F99'")));
}

TEST_F(Safetensors, WritesTheBytesThatThePythonPackageWrites) {
  for (const auto* name : {"dtypes.safetensors", "shapes.safetensors"}) {
    const SafetensorsFile file(fixture(name));
    std::map<std::string, at::Tensor> tensors;
    for (const auto& tensor : file.names()) tensors[tensor] = file.read(tensor);
    const auto digest = write_safetensors(folder_ / name, tensors, file.metadata());
    EXPECT_EQ(read_file(folder_ / name), read_file(fixture(name))) << name;
    EXPECT_EQ(digest, sha256_of_file(fixture(name)));
  }
}

TEST_F(Safetensors, RoundTripsAnyStridesAndSizes) {
  torch::manual_seed(1);
  std::map<std::string, at::Tensor> tensors;
  for (const int64_t size : {0, 1, 31, 33, 1009})
    tensors[fmt::format("v{}", size)] = torch::randn({size});
  tensors["transposed"] = torch::randn({5, 7}).t();
  tensors["sliced"] = torch::randn({9, 4}).slice(0, 1, 8, 2);
  tensors["expanded"] = torch::randn({1, 3}).expand({4, 3});
  tensors["needs_grad"] = torch::randn({3}, torch::requires_grad());
  tensors["bytes_make_others_unaligned"] = torch::ones({3}, at::kByte);
  write_safetensors(folder_ / "t", tensors);
  const SafetensorsFile file(folder_ / "t");
  ASSERT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) expect_same(file.read(name), tensor.detach());
  EXPECT_TRUE(file.metadata().empty());
}

TEST_F(Safetensors, AFileWithoutTensorsIsAFile) {
  write_safetensors(folder_ / "none", {}, {{"a", "b"}});
  const SafetensorsFile file(folder_ / "none");
  EXPECT_TRUE(file.names().empty());
  EXPECT_EQ(file.metadata().at("a"), "b");
}

TEST_F(Safetensors, ReadIsACopyThatOutlivesTheFile) {
  at::Tensor tensor;
  {
    const SafetensorsFile file(fixture("shapes.safetensors"));
    tensor = file.read("a");
    tensor.add_(1);
    EXPECT_EQ(file.read("a")[0][0][0].item<float>(), 0);
  }
  EXPECT_EQ(tensor.sum().item<float>(), 21);
}

TEST_F(Safetensors, NamesTheNearestTensor) {
  const SafetensorsFile file(fixture("dtypes.safetensors"));
  try {
    file.read("t.BF61");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'t.BF61'"));
    EXPECT_THAT(error.help(), HasSubstr("t.BF16"));
  }
}

TEST_F(Safetensors, RefusesToWriteWhatTheFormatCannotHold) {
  EXPECT_THROW(write_safetensors(folder_ / "t", {{"c", torch::zeros({2}, at::kComplexFloat)}}),
               UserError);
  EXPECT_THROW(write_safetensors(folder_ / "t", {{"__metadata__", torch::zeros({2})}}), UserError);
  EXPECT_THROW(write_safetensors(folder_ / "t", {{"\xff", torch::zeros({2})}}), UserError);
  EXPECT_THROW(write_safetensors(folder_ / "absent" / "t", {{"a", torch::zeros({2})}}), UserError);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Safetensors, RefusesWithTheReason) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(refusal(file_of(good, 8)), "accepted");
  EXPECT_EQ(refusal(file_of("{}", 0)), "accepted");
  const auto a = [](const std::string& entry) { return "{\"a\":" + entry + "}"; };
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const std::vector<std::tuple<std::string, std::string>> cases = {
      {"", "too short"},
      {"1234567", "too short"},
      {std::string(8, '\xff'), "header should have"},
      {file_of(good, 8).substr(0, 20), "header should have"},
      {file_of("", 0), "not JSON"},
      {file_of("[]", 0), "not a JSON object"},
      {file_of("null", 0), "not a JSON object"},
      {file_of("{\"a\":\xff}", 0), "not JSON"},
      {file_of(good + "x", 8), "not JSON"},
      {file_of(deep, 0), "nested"},
      {file_of(a(deep), 0), "nested"},
      {file_of(a(R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})"), 8), "nested"},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           8),
       "twice"},
      {file_of(a(R"({"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]})"), 8), "twice"},
      {file_of(a("3"), 0), "not an object"},
      {file_of(a(R"({"shape":[2],"data_offsets":[0,8]})"), 8), "'dtype' is missing"},
      {file_of(a(R"({"dtype":"F32","data_offsets":[0,8]})"), 8), "'shape' is missing"},
      {file_of(a(R"({"dtype":"F32","shape":[2]})"), 8), "'data_offsets' is missing"},
      {file_of(a(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})"), 8), "F31"},
      {file_of(a(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})"), 8), "not a string"},
      {file_of(a(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), 8), "not a list"},
      {file_of(a(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), 8), "not a size"},
      {file_of(a(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), 8), "not a size"},
      {file_of(a(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"), 8),
       "not a size"},
      {file_of(a(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})"), 0),
       "overflows"},
      {file_of(a(R"({"dtype":"F32","shape":[4294967296,4294967297],"data_offsets":[0,0]})"), 0),
       "overflows"},
      {file_of(
           a(R"({"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]})"),
           0),
       "overflows"},
      {file_of(a(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), 8), "pair"},
      {file_of(a(R"({"dtype":"F32","shape":[2],"data_offsets":[0,-8]})"), 8), "pair"},
      {file_of(a(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), 8), "outside"},
      {file_of(good, 7), "outside"},
      {file_of(a(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), 8), "need 12"},
      {file_of(good, 9), "1 bytes follow"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           3),
       "overlap"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
           3),
       "hole"},
      {file_of(R"({"__metadata__":{"a":1}})", 0), "not a string"},
      {file_of(R"({"__metadata__":[]})", 0), "not an object"},
  };
  for (const auto& [bytes, reason] : cases)
    EXPECT_THAT(refusal(bytes), HasSubstr(reason))
        << bytes.substr(0, std::min<size_t>(bytes.size(), 200));
}

TEST_F(Safetensors, TakesEmptyShapesWithAnyOtherSizeThatATenTakes) {
  const std::string bytes =
      file_of(R"({"a":{"dtype":"F32","shape":[0,1099511627776],"data_offsets":[0,0]}})", 0);
  EXPECT_EQ(SafetensorsFile(bytes, "x").read("a").numel(), 0);
}

TEST_F(Safetensors, RefusesABoolThatIsNotOne) {
  auto bytes = file_of(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2);
  EXPECT_FALSE(SafetensorsFile(bytes, "x").read("a").any().item<bool>());
  bytes.back() = 2;
  const SafetensorsFile file(bytes, "x");
  EXPECT_THROW(file.read("a"), UserError);
}

/// One of: another byte, a number that does not fit, a piece removed, doubled or moved, another
/// length.
std::string mutated(std::string bytes, std::mt19937_64& random) {
  const auto below = [&](size_t bound) {
    return bound == 0 ? size_t{0} : static_cast<size_t>(random() % bound);
  };
  const char* const words[] = {"18446744073709551616",
                               "-1",
                               "1e9",
                               "9223372036854775807",
                               "[",
                               "]",
                               "{",
                               "}",
                               "\"",
                               ",",
                               "null",
                               "\"F8_E5M2\"",
                               "\\u0000",
                               "0",
                               "[[[[",
                               "\"a\":",
                               "\xc3"};
  const int edits = 1 + static_cast<int>(below(3));
  for (int i = 0; i < edits && !bytes.empty(); ++i) {
    const size_t at = below(bytes.size()), piece = std::min(below(40), bytes.size() - at);
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.replace(at, below(4), words[below(std::size(words))]);
        break;
      case 2:
        bytes.erase(at, piece);
        break;
      case 3:
        bytes.insert(below(bytes.size()), bytes.substr(at, piece));
        break;
      case 4:
        bytes[below(8)] = static_cast<char>(random());
        break;
      default:
        bytes.resize(at);
        break;
    }
  }
  // Half of the inputs get a correct header length, so that mutations reach the JSON and the data
  // after it.
  if (bytes.size() > 8 && below(2) == 0) {
    const uint64_t length = std::min<size_t>(
        bytes.size() - 8, bytes.rfind('}') == std::string::npos ? 0 : bytes.rfind('}') - 7);
    std::memcpy(bytes.data(), &length, 8);
  }
  return bytes;
}

TEST_F(Safetensors, FuzzedFilesAreReadOrRefused) {
  const int64_t inputs = test::fuzz_inputs(20000);
  const std::string seeds[] = {
      read_file(fixture("dtypes.safetensors")), read_file(fixture("shapes.safetensors")),
      file_of(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
              8)};
  std::mt19937_64 random(7);
  int64_t accepted = 0, refused = 0;
  for (int64_t i = 0; i < inputs; ++i) {
    // On the heap and of the exact size, so that the address sanitizer sees a read one byte past
    // it.
    const std::string text = mutated(seeds[random() % std::size(seeds)], random);
    const std::vector<char> bytes(text.begin(), text.end());
    try {
      const SafetensorsFile file({bytes.data(), bytes.size()}, "fuzz");
      for (const auto& name : file.names()) ASSERT_EQ(file.read(name).sizes(), file.shape(name));
      ++accepted;
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, inputs / 100);
  EXPECT_GT(refused, inputs / 100);
}

}  // namespace
}  // namespace dovetail::io::safetensors_test
