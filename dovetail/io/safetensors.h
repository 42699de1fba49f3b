#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/base/file.h"

namespace dovetail {

/// Named tensors in the safetensors format: header length (8 bytes, little-endian), JSON header padded with spaces to 8
/// bytes, data. Widest dtypes first and names in order within one dtype, which aligns every tensor and gives the bytes
/// that the `safetensors` Python package writes. Any device and strides; the dtypes are F64 F32 F16 BF16 I64 I32 I16 I8
/// U8 BOOL F8_E4M3 F8_E5M2 (UserError for others). Written atomically (AtomicFile). Returns the sha256 of the file.
std::string write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// A safetensors file, memory-mapped and checked whole before anything is used: header length, JSON (no duplicate key),
/// dtypes, shapes, offsets inside the file, no overlap and no hole. Throws UserError with file and reason.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// The same over bytes in memory, which must outlive this object (for the fuzz test); `name` stands in errors.
  SafetensorsFile(std::string_view bytes, std::string name);

  const std::string& name() const { return name_; }  ///< of the file
  std::vector<std::string> names() const;            ///< of the tensors, ascending
  bool contains(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;
  /// A copy of its own, on the CPU. UserError naming the nearest name when absent, or when a BOOL holds other bytes
  /// than 0 and 1.
  at::Tensor read(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Entry {
    at::ScalarType dtype;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;
  };
  void parse(std::string_view bytes);
  const Entry& entry(const std::string& name) const;
  [[noreturn]] void refuse(const std::string& reason) const;

  MappedFile file_;
  std::string_view data_;
  std::string name_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace dovetail
