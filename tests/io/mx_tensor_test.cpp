#include "dovetail/io/mx_tensor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/mx/quantize.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::io::mx_tensor_test {
namespace {

using mx::Copies;
using mx::Format;
using mx::MXTensor;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

MXTensor some(Format format, Copies copies, at::IntArrayRef sizes = {37, 45}) {
  const mx::Quantized made = mx::quantize(at::randn(sizes), {.format = format, .copies = copies});
  return copies == Copies::kRow ? made.row : copies == Copies::kColumn ? made.column : made.square;
}

TEST(MxTensorFile, GivesBackEveryFormatInEveryOrientation) {
  const TemporaryFolder folder;
  SafetensorsContent content;
  std::map<std::string, MXTensor> written;
  for (const Format format :
       {Format::kE4M3, Format::kE5M2, Format::kE3M2, Format::kE2M3, Format::kE2M1, Format::kInt8}) {
    for (const Copies copies : {Copies::kRow, Copies::kColumn, Copies::kSquare}) {
      const std::string name =
          std::string(mx::name(format)) + std::to_string(static_cast<int>(copies));
      put_mx_tensor(name, written[name] = some(format, copies), content);
    }
  }
  put_mx_tensor("empty", written["empty"] = some(Format::kE2M1, Copies::kRow, {0, 5}), content);
  put_mx_tensor("deep", written["deep"] = some(Format::kE3M2, Copies::kColumn, {33, 2, 3}),
                content);
  write_safetensors(folder / "x.safetensors", content.tensors, content.metadata);
  const SafetensorsFile file(folder / "x.safetensors");
  for (const auto& [name, x] : written) {
    const MXTensor y = read_mx_tensor(file, name);
    EXPECT_TRUE(at::equal(y.codes(), x.codes())) << name;
    EXPECT_TRUE(at::equal(y.scales(), x.scales())) << name;
    EXPECT_EQ(y.format(), x.format()) << name;
    EXPECT_EQ(y.orientation(), x.orientation()) << name;
    EXPECT_EQ(file.read(name + ".codes").numel() + file.read(name + ".scales").numel(),
              x.packed_bytes())
        << name;
  }
}

TEST(MxTensorFile, WhatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  const auto refusal = [&](auto change) {
    SafetensorsContent content;
    put_mx_tensor("w", some(Format::kE2M1, Copies::kRow), content);
    change(content);
    write_safetensors(folder / "x.safetensors", content.tensors, content.metadata);
    try {
      read_mx_tensor(SafetensorsFile(folder / "x.safetensors"), "w");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto with_metadata = [&](const char* text) {
    return refusal([&](SafetensorsContent& content) { content.metadata["w"] = text; });
  };
  EXPECT_EQ(refusal([](SafetensorsContent&) {}), "accepted");
  EXPECT_THAT(refusal([](SafetensorsContent& c) { c.metadata.erase("w"); }),
              AllOf(HasSubstr("x.safetensors"), HasSubstr("\"w\"")));
  EXPECT_THAT(refusal([](SafetensorsContent& c) { c.tensors.erase("w.scales"); }),
              HasSubstr("w.scales"));
  EXPECT_THAT(
      refusal([](SafetensorsContent& c) { c.tensors["w.scales"] = at::zeros({37, 3}, at::kByte); }),
      HasSubstr("[37, 3]"));
  EXPECT_THAT(with_metadata("{"), AllOf(HasSubstr("x.safetensors"), HasSubstr("metadata")));
  EXPECT_THAT(with_metadata(R"({"format": "e2m1", "orientation": "row"})"), HasSubstr("shape"));
  EXPECT_THAT(with_metadata(R"({"format": "e9m9", "orientation": "row", "shape": [37, 45]})"),
              HasSubstr("e9m9"));
  EXPECT_THAT(with_metadata(R"({"format": "e2m1", "orientation": "up", "shape": [37, 45]})"),
              HasSubstr("\"up\""));
  EXPECT_THAT(with_metadata(R"({"format": "e2m1", "orientation": "row", "shape": [37, 47]})"),
              HasSubstr("870 bytes"));
  for (const char* shape : {"[-37, -45]", "[4294967296, 4294967296]", "[9223372036854775807, 2]"}) {
    EXPECT_THAT(with_metadata((R"({"format": "e2m1", "orientation": "row", "shape": )" +
                               std::string(shape) + "}")
                                  .c_str()),
                HasSubstr("are not the sizes"))
        << shape;
  }
}

}  // namespace
}  // namespace dovetail::io::mx_tensor_test
