#include "dovetail/data/text/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/base/threads.h"
#include "dovetail/data/files/utf8.h"

namespace dovetail::data {
namespace {

uint64_t hex_word(const std::string& sha256, size_t at) {
  uint64_t word = 0;
  std::from_chars(sha256.data() + at, sha256.data() + at + 16, word, 16);
  return word;
}

/// Checks keys that only apply to files of records.
void check_records(const DataConfig& config, const std::vector<InputFile>& inputs) {
  const DataConfig none;
  if (std::ranges::any_of(
          inputs, [](const InputFile& input) { return input.format != InputFormat::kText; }))
    return;
  const auto unread = [&](const char* key, const std::string& value, const std::string& usual) {
    user_check(
        value == usual,
        "data.{} = \"{}\" does nothing: none of the {} files is JSON or Parquet; leave it out", key,
        value, inputs.size());
  };
  unread("text_field", config.text_field, none.text_field);
  unread("bad_row", config.bad_row, none.bad_row);
}

}  // namespace

double hashed_share(std::string_view key) {
  return std::ldexp(static_cast<double>(hex_word(sha256_of(key), 0) >> 11), -53);
}

void ProgressReport::begin(const char* stage, int64_t documents, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  now_ = {0, documents, 0, bytes, stage};
  if (callback_) callback_(now_);
}

void ProgressReport::add(int64_t documents, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  now_.documents_done += documents;
  now_.bytes_done += bytes;
  if (callback_) callback_(now_);
}

Corpus::Corpus(const DataConfig& config, bool lossless, ProgressReport& progress)
    : config_(config), lossless_(lossless), progress_(progress) {
  auto [inputs, passed_over] = list_inputs(config);
  passed_over_ = std::move(passed_over);
  check_records(config, inputs);
  // A text file is one document. If it is too large, it need not be read.
  const auto too_large = [&](const InputFile& input) {
    return input.format == InputFormat::kText && input.head.is_plain() &&
           fate_of(input.bytes, true) == Fate::kOversized;
  };
  const auto kept = std::remove_if(inputs.begin(), inputs.end(), too_large);
  oversized_ = inputs.end() - kept;
  inputs.erase(kept, inputs.end());
  hash_sources(std::move(inputs));
}

void Corpus::hash_sources(std::vector<InputFile> inputs) {
  uint64_t bytes = 0;
  for (InputFile& input : inputs) {
    bytes += input.bytes;
    sources_.push_back({.input = std::move(input)});
  }
  const auto size = static_cast<int64_t>(sources_.size());
  progress_.begin("reading", size, bytes);
  parallel_pieces(size, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Source& source = sources_[static_cast<size_t>(i)];
      const uint64_t expected = source.input.bytes;
      if (source.input.format == InputFormat::kText) {
        const std::string text = read_text(source.input);
        source.text_sha256 = sha256_of(text);
        source.input.text_bytes = text.size();
        source.valid = is_valid_utf8(text);
        const bool whole = source.input.head.is_plain() && text.size() == source.input.bytes;
        source.sha256 = whole ? source.text_sha256 : sha256_of_file(source.input.path);
      } else {
        source.sha256 = sha256_of_file(source.input.path);
        if (source.input.format != InputFormat::kParquet && !source.input.head.is_plain()) {
          source.input.content =
              std::make_shared<MappedInput>(source.input.path, source.input.head);
          source.input.text_bytes = source.input.content->bytes().size();
        }
      }
      progress_.add(1, expected);
    }
  });
}

Corpus::Digest Corpus::digest_of(const std::string& sha256) {
  return {hex_word(sha256, 0), hex_word(sha256, 16)};
}

Corpus::Fate Corpus::fate_of(uint64_t bytes, bool valid) const {
  if (config_.max_document_bytes > 0 && bytes > static_cast<uint64_t>(config_.max_document_bytes))
    return Fate::kOversized;
  return valid || lossless_ ? Fate::kKept : Fate::kInvalid;
}

std::string Corpus::Source::reading() const {
  const bool plain_name = input.format == InputFormat::kParquet ? input.head.extension == ".parquet"
                          : input.format == InputFormat::kJsonLines
                              ? input.head.extension == ".jsonl"
                              : input.format == InputFormat::kText;
  if (plain_name && input.head.is_plain() && input.text_bytes == input.bytes) return {};
  return fmt::format("{} {} {}", static_cast<int>(input.format), input.head.name, input.text_bytes);
}

Corpus::Looked Corpus::look_through(const Piece& piece) const {
  const Source& source = sources_[piece.file];
  Looked looked;
  const auto keep = [](std::vector<std::string>& places, const UserError& problem) {
    places.push_back(fmt::format("{}: {}", problem.place(), problem.what()));
  };
  if (source.input.format == InputFormat::kText) {
    const Fate fate = source.input.text_bytes == 0 ? Fate::kEmpty
                                                   : fate_of(source.input.text_bytes, source.valid);
    looked.documents.push_back({digest_of(source.text_sha256), fate});
    if (!source.valid)
      keep(looked.not_utf8, UserError("the text is not UTF-8", {}, source.input.path.string()));
    return looked;
  }
  read_documents(source.input, piece, config_.text_field, [&](const Document& document) {
    using State = Document::State;
    if (document.state == State::kBad && config_.bad_row == "error")
      throw UserError(
          document.problem->what(),
          document.problem->help() + "; data.bad_row = \"skip\" leaves such records out",
          document.problem->place());
    // Records are text in JSON or in an Arrow string. Invalid UTF-8 there means damage, for every
    // tokenizer.
    const Fate fate = document.state == State::kText    ? fate_of(document.text.size(), true)
                      : document.state == State::kEmpty ? Fate::kEmpty
                      : document.state == State::kBad   ? Fate::kBad
                                                        : Fate::kInvalid;
    const bool compare = config_.deduplicate && fate == Fate::kKept;
    looked.documents.push_back({compare ? digest_of(sha256_of(document.text)) : Digest{}, fate});
    if (document.problem != nullptr)
      keep(fate == Fate::kBad ? looked.bad : looked.not_utf8, *document.problem);
  });
  return looked;
}

void Corpus::warn_of(const std::vector<Looked>& looked) const {
  const auto first = [&](auto member) {
    std::string text;
    int shown = 0;
    for (const Looked& piece : looked)
      for (const std::string& place : piece.*member)
        if (shown++ < kProblemsDescribed) text += "\n  " + place;
    return text;
  };
  const std::string bad = first(&Looked::bad), not_utf8 = first(&Looked::not_utf8);
  if (bad_ > config_.max_bad_rows)
    throw UserError(fmt::format("more than data.max_bad_rows = {} bad records; the first:{}",
                                config_.max_bad_rows, bad),
                    "mend the files, or raise data.max_bad_rows");
  if (bad_ > 0) log_warning("{} bad records are left out; the first:{}", bad_, bad);
  int64_t kept = 0;
  for (const Source& source : sources_) kept += lossless_ && !source.valid;
  if (!not_utf8.empty())
    log_warning(
        "{} texts are not UTF-8: {} are left out, {} files are kept byte by byte; the first:{}",
        invalid_ + kept, invalid_, kept, not_utf8);
}

void Corpus::scan() {
  std::vector<InputFile> inputs;
  for (const Source& source : sources_) inputs.push_back(source.input);
  pieces_ = cut_into_pieces(inputs, config_.text_field);
  std::vector<Looked> looked(pieces_.size());
  parallel_pieces(static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto p = static_cast<size_t>(begin); p < static_cast<size_t>(end); ++p)
      looked[p] = look_through(pieces_[p]);
  });
  std::unordered_set<Digest, DigestHash> known;
  fates_.resize(pieces_.size());
  for (size_t p = 0; p < pieces_.size(); ++p)
    for (Seen& document : looked[p].documents) {
      if (config_.deduplicate && document.fate == Fate::kKept &&
          !known.insert(document.digest).second)
        document.fate = Fate::kDuplicate;
      documents_ += document.fate == Fate::kKept;
      duplicates_ += document.fate == Fate::kDuplicate;
      oversized_ += document.fate == Fate::kOversized;
      invalid_ += document.fate == Fate::kInvalid;
      empty_ += document.fate == Fate::kEmpty;
      bad_ += document.fate == Fate::kBad;
      fates_[p].push_back(document.fate);
    }
  warn_of(looked);
}

std::string Corpus::fingerprint(size_t piece) const {
  const Piece& where = pieces_[piece];
  const Source& source = sources_[where.file];
  std::string key =
      fmt::format("{}\n{}\n{} {}\n", source.input.relative, source.sha256, where.begin, where.end);
  key += source.reading();
  for (const Fate fate : fates_[piece]) key += fate == Fate::kKept ? '+' : '-';
  return sha256_of(key);
}

size_t Corpus::tail_begin(std::string_view text) const {
  auto begin =
      static_cast<size_t>(static_cast<double>(text.size()) * (1.0 - config_.validation_fraction));
  begin = std::min(begin, text.size());
  while (begin > 0 && begin < text.size() &&
         (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80)
    --begin;
  return begin;
}

void Corpus::read(
    size_t piece,
    const std::function<void(Split, std::string_view, const std::string&)>& visit) const {
  const std::vector<Fate>& fates = fates_[piece];
  if (std::find(fates.begin(), fates.end(), Fate::kKept) == fates.end()) return;
  const Source& source = sources_[pieces_[piece].file];
  size_t index = 0;
  read_documents(source.input, pieces_[piece], config_.text_field, [&](const Document& document) {
    user_check(index < fates.size(), "{} changed while it was read", source.input.path.string());
    if (fates[index++] != Fate::kKept) return;
    if (config_.validation_split == "document") {
      const bool held_out = hashed_share(document.identity) < config_.validation_fraction;
      return visit(held_out ? Split::kValidation : Split::kTrain, document.text, document.identity);
    }
    const size_t cut = tail_begin(document.text);
    if (cut > 0) visit(Split::kTrain, document.text.substr(0, cut), document.identity);
    if (cut < document.text.size())
      visit(Split::kValidation, document.text.substr(cut), document.identity);
  });
}

}  // namespace dovetail::data
