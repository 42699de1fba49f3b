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

/// Named tensors in the safetensors format: header length (8 bytes, little-endian), JSON header
/// padded with spaces to 8 bytes, data. Widest dtypes first and names in order within one dtype,
/// which aligns every tensor and gives the bytes that the `safetensors` Python package writes. Any
/// device and strides; the dtypes are F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL F8_E4M3 F8_E5M2
/// (UserError for others). Written atomically (AtomicFile). Returns the sha256 of the file.
std::string write_safetensors(const std::filesystem::path& path,
                              const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// A safetensors file of one tensor that is written block by block, so that no more than a block
/// need be in memory. The bytes are those of write_safetensors. Throws UserError when the disk does
/// not take them.
class SafetensorsStream {
 public:
  SafetensorsStream(const std::filesystem::path& path, const std::string& name,
                    at::ScalarType dtype, const std::vector<int64_t>& shape);
  /// The next rows, (n, ...) on the CPU.
  void append(const at::Tensor& rows);
  /// All rows must be there. Returns the sha256 of the file, which is then whole under its name.
  std::string commit();
  uint64_t bytes_written() const { return file_.bytes_written(); }

 private:
  void put(const void* data, size_t bytes);

  AtomicFile file_;
  Sha256 digest_;
  std::string name_;
  at::ScalarType dtype_;
  uint64_t left_ = 0;  ///< bytes
};

/// A safetensors file, memory-mapped and checked whole before anything is used: header length, JSON
/// (no duplicate key), dtypes, shapes, offsets inside the file, no overlap and no hole. Throws
/// UserError with file and reason.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// The same over bytes in memory, which must outlive this object (for the fuzz test); `name`
  /// stands in errors.
  SafetensorsFile(std::string_view bytes, std::string name);

  const std::string& name() const { return name_; }  ///< of the file
  std::vector<std::string> names() const;            ///< of the tensors, ascending
  bool contains(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;
  /// A copy of its own, on the CPU. UserError naming the nearest name when absent, or when a BOOL
  /// holds other bytes than 0 and 1.
  at::Tensor read(const std::string& name) const;
  /// The same of rows [first, first + count) of a tensor of one dimension or more, which do not
  /// stay resident in the mapping: a large tensor is read in the memory of a block.
  at::Tensor read_rows(const std::string& name, int64_t first, int64_t count) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Entry {
    at::ScalarType dtype;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;
  };
  void parse(std::string_view bytes);
  const Entry& entry(const std::string& name) const;
  at::Tensor copy_of(const std::string& name, const Entry& entry) const;
  [[noreturn]] void refuse(const std::string& reason) const;

  MappedFile file_;
  std::string_view data_;
  std::string name_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace dovetail
