#include "dovetail/data/rows/row_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <mutex>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/data/files/open_input.h"
#include "dovetail/data/files/parquet.h"
#include "dovetail/data/rows/delimited.h"
#include "dovetail/data/rows/delimiter.h"

namespace dovetail::data {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlockBytes = uint64_t{2} << 20;

/// Returns the index of each wanted column among the columns of a file.
std::vector<size_t> find_columns(const std::vector<std::string>& wanted,
                                 const std::vector<std::string>& there, const fs::path& path) {
  std::vector<size_t> found;
  for (const std::string& name : wanted) {
    const auto at = std::find(there.begin(), there.end(), name);
    if (at == there.end()) {
      const std::string nearest = nearest_word(name, there);
      throw UserError(fmt::format("rows: no column `{}`; found {}", name,
                                  printable(fmt::format("{}", fmt::join(there, ", ")))),
                      there.size() == 1 ? "the header was read as one column; rows.delimiter names "
                                          "the character between fields"
                      : nearest.empty() ? "name the columns of [rows] as the file does"
                                        : fmt::format("did you mean `{}`?", nearest),
                      path.string());
    }
    if (std::find(at + 1, there.end(), name) != there.end())
      throw UserError(fmt::format("rows: the file has two columns `{}`", printable(name)),
                      "rename one of them; columns that [rows] does not name may share a name",
                      path.string());
    found.push_back(static_cast<size_t>(at - there.begin()));
  }
  return found;
}

/// Part of a file that is read at once.
struct Block {
  size_t file = 0;
  /// Range of text. In Parquet, only `first_row` and `rows` are used.
  RecordRange range;
  int64_t group = 0;  ///< row group of Parquet
  /// First row of the block within its Parquet row group.
  int64_t group_row = 0;
};

class SourceFile {
 public:
  explicit SourceFile(fs::path path) : path_(std::move(path)) {}
  virtual ~SourceFile() = default;
  const fs::path& path() const { return path_; }
  virtual std::vector<Block> blocks() const = 0;
  virtual std::pair<Block, Block> cut(const Block& block, int64_t rows) const = 0;
  virtual void read(const Block& block, const RowDecoder& decoder, RowBlock& out) const = 0;

 private:
  fs::path path_;
};

class TextSource : public SourceFile {
 public:
  TextSource(const fs::path& path, const DelimitedFormat& format, const RowDecoder& decoder,
             const std::shared_ptr<const MappedInput>& input)
      : SourceFile(path),
        file_(path, format, input),
        selected_(find_columns(decoder.columns(), file_.columns(), path)) {
    decoder.check_lists(std::vector<bool>(selected_.size(), false), path);
  }

  std::vector<Block> blocks() const override {
    std::vector<Block> found;
    for (const RecordRange& range : file_.ranges(kBlockBytes)) found.push_back({0, range, 0, 0});
    return found;
  }

  std::pair<Block, Block> cut(const Block& block, int64_t rows) const override {
    const auto [first, second] = file_.cut(block.range, rows);
    return {Block{block.file, first, 0, 0}, Block{block.file, second, 0, 0}};
  }

  void read(const Block& block, const RowDecoder& decoder, RowBlock& out) const override {
    decoder.reserve(block.range.rows, out);
    file_.read(block.range, selected_,
               [&](int64_t row, std::span<const Cell> cells, const BadRow* bad) {
                 if (bad != nullptr)
                   RowDecoder::add_bad(out, *bad);
                 else
                   decoder.decode(cells, row, out);
               });
  }

 private:
  DelimitedFile file_;
  std::vector<size_t> selected_;
};

class ParquetSource : public SourceFile {
 public:
  ParquetSource(const fs::path& path, const RowDecoder& decoder) : SourceFile(path) {
    auto reader = open_parquet_columns(path);
    columns_ = find_columns(decoder.columns(), reader->column_names(), path);
    decoder.check_lists(reader->select(columns_), path);
    int64_t row = 0;
    for (int64_t group = 0; group < reader->num_row_groups(); ++group) {
      blocks_.push_back({0, {0, 0, row, reader->group_rows(group)}, group, 0});
      row += reader->group_rows(group);
    }
    idle_.push_back(std::move(reader));
  }

  std::vector<Block> blocks() const override { return blocks_; }

  std::pair<Block, Block> cut(const Block& block, int64_t rows) const override {
    Block first = block, second = block;
    first.range.rows = rows;
    second.range.rows -= rows;
    second.range.first_row += rows;
    second.group_row += rows;
    return {first, second};
  }

  void read(const Block& block, const RowDecoder& decoder, RowBlock& out) const override {
    std::unique_ptr<ParquetColumns> reader = take();
    const std::vector<ColumnValues> columns = reader->read(block.group);
    give(std::move(reader));
    decoder.reserve(block.range.rows, out);
    decoder.decode_columns(columns, block.group_row, block.range.rows, block.range.first_row + 1,
                           out);
  }

 private:
  /// Returns an idle reader, or opens another. A reader serves one thread at a time.
  std::unique_ptr<ParquetColumns> take() const {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto reader = std::move(idle_.back());
        idle_.pop_back();
        return reader;
      }
    }
    auto reader = open_parquet_columns(path());
    reader->select(columns_);
    return reader;
  }

  void give(std::unique_ptr<ParquetColumns> reader) const {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(reader));
  }

  std::vector<size_t> columns_;
  std::vector<Block> blocks_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<ParquetColumns>> idle_;
};

/// Returns "parquet" by the first bytes or the text format by the extension; empty for other text.
std::string format_of(const RowsConfig& config, const fs::path& path, const InputHead& head) {
  if (config.format != "auto") return config.format;
  if (head.kind == InputKind::kParquet) return "parquet";
  require_text(head, path, "Parquet or text");
  for (const char* known : {"tsv", "csv"})
    if (head.extension == std::string(".") + known) return known;
  return {};
}

/// Returns the delimiter that belongs to the format. If that does not split the first line but
/// another one does, returns the other one.
char delimiter_of(const RowsConfig& config, const std::string& format, const fs::path& path,
                  std::string_view text) {
  if (!config.delimiter.empty()) return config.delimiter[0];
  const char expected = format == "csv" ? ',' : format == "tsv" ? '\t' : kBlanks;
  const std::string_view line = text.substr(0, text.find('\n'));
  if (config.format != "auto" ||
      (expected != kBlanks && line.find(expected) != std::string_view::npos))
    return expected;
  const char found = find_delimiter(text, expected, config.decimal[0]);
  if (found == kBlanks)
    throw UserError("no delimiter cuts the first lines into equally many fields",
                    "rows.delimiter names the character between fields", path.string());
  if (found != expected)
    log_info("{}: {} between fields, found in the first lines; rows.delimiter names another",
             path.string(), delimiter_name(found));
  return found;
}

std::unique_ptr<SourceFile> open_source(const RowsConfig& config, const fs::path& path,
                                        const RowDecoder& decoder) {
  const InputHead head = look_at_input(path);
  const std::string format = format_of(config, path, head);
  if (format == "parquet") {
    if (head.kind != InputKind::kParquet || !head.is_plain())
      throw UserError(
          fmt::format("this is {}, not Parquet", head.name),
          head.kind == InputKind::kText ? "rows.format = \"auto\" finds the format" : head.remedy,
          path.string());
    if (!config.delimiter.empty() || !config.header || config.decimal != ".")
      throw UserError(
          "rows.delimiter, rows.decimal, rows.header and rows.columns are for text; a Parquet file "
          "names its columns",
          "leave them out", path.string());
    return std::make_unique<ParquetSource>(path, decoder);
  }
  const auto input = std::make_shared<const MappedInput>(path, head);
  require_text(head, path, "text with a delimiter");
  require_table(input->bytes(), path);
  const char delimiter = delimiter_of(config, format, path, input->bytes());
  const bool quotes = (format.empty() ? delimiter != '\t' : format == "csv") ||
                      has_quotes_between_tabs(input->bytes());
  return std::make_unique<TextSource>(path, DelimitedFormat{delimiter, quotes, config.columns},
                                      decoder, input);
}

}  // namespace

struct RowReader::State {
  RowDecoder decoder;
  std::vector<std::unique_ptr<SourceFile>> files;
  std::vector<Block> blocks;
  int64_t num_rows = 0, num_validation = 0, num_train_blocks = 0;

  explicit State(const RowsConfig& config) : decoder(config) {
    for (const fs::path& path : expand_files(config.files)) {
      files.push_back(open_source(config, path, decoder));
      for (Block& block : files.back()->blocks()) {
        block.file = files.size() - 1;
        num_rows += block.range.rows;
        if (block.range.rows > 0) blocks.push_back(block);
      }
    }
    user_check(num_rows > 0, "rows.files: {} hold no row", fmt::join(config.files, ", "));
    const double held_out = config.by_day() ? 0 : config.validation_fraction;
    num_validation = static_cast<int64_t>(static_cast<double>(num_rows) * held_out);
    cut_at(num_rows - num_validation);
  }

  /// Cuts the blocks so that row `at` of all rows begins a block, the first of validation.
  void cut_at(int64_t at) {
    size_t b = 0;
    for (; at > 0 && at >= blocks[b].range.rows; ++b) at -= blocks[b].range.rows;
    if (at > 0) {
      const auto [first, second] = files[blocks[b].file]->cut(blocks[b], at);
      blocks[b++] = first;
      blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(b), second);
    }
    num_train_blocks = static_cast<int64_t>(b);
  }
};

RowReader::RowReader(const RowsConfig& config) {
  config.check();
  state_ = std::make_unique<State>(config);
}

RowReader::~RowReader() = default;

const RowDecoder& RowReader::decoder() const { return state_->decoder; }
int64_t RowReader::num_rows() const { return state_->num_rows; }
int64_t RowReader::num_validation_rows() const { return state_->num_validation; }
int64_t RowReader::num_blocks() const { return static_cast<int64_t>(state_->blocks.size()); }
int64_t RowReader::num_train_blocks() const { return state_->num_train_blocks; }

const fs::path& RowReader::file_of(int64_t block) const {
  return state_->files[state_->blocks[static_cast<size_t>(block)].file]->path();
}

int64_t RowReader::first_row(int64_t block) const {
  return state_->blocks[static_cast<size_t>(block)].range.first_row;
}

RowBlock RowReader::read(int64_t block) const {
  DOVETAIL_CHECK(block >= 0 && block < num_blocks(), "block {} of {}", block, num_blocks());
  const Block& wanted = state_->blocks[static_cast<size_t>(block)];
  RowBlock out;
  state_->files[wanted.file]->read(wanted, state_->decoder, out);
  return out;
}

std::vector<fs::path> expand_files(const std::vector<std::string>& patterns) {
  std::vector<fs::path> files;
  for (const std::string& pattern : patterns) {
    glob_t found{};
    const int status = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
    for (size_t i = 0; status == 0 && i < found.gl_pathc; ++i)
      files.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    user_check(status == 0, "rows.files: {} names no file; give files or globs that exist",
               printable(pattern));
  }
  return files;
}

}  // namespace dovetail::data
