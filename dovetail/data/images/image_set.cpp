#include "dovetail/data/images/image_set.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/data/files/npy.h"
#include "dovetail/data/files/open_input.h"
#include "dovetail/data/images/image_file.h"

namespace dovetail::data {
namespace {

namespace fs = std::filesystem;

/// Array of a mapped .npy file.
struct MappedArray {
  std::unique_ptr<MappedInput> input;
  at::Tensor values;
};

std::optional<at::ScalarType> type_of(const NpyArray& array) {
  const std::pair<const char*, at::ScalarType> known[] = {{"u1", at::kByte}, {"b1", at::kByte},
                                                          {"i1", at::kChar}, {"i2", at::kShort},
                                                          {"i4", at::kInt},  {"i8", at::kLong}};
  for (const auto& [name, type] : known)
    if (array.type == name) return type;
  return std::nullopt;
}

MappedArray map_array(const fs::path& path) {
  MappedArray out{.input = std::make_unique<MappedInput>(path), .values = {}};
  const NpyArray array = parse_npy(out.input->bytes(), path);
  const auto refuse = [&](const std::string& reason, const char* help) {
    throw UserError(reason, help, path.string());
  };
  const std::optional<at::ScalarType> type = type_of(array);
  if (!type || array.big_endian)
    refuse(fmt::format("values of type {} are not read", printable(array.type)),
           "write images and masks as uint8 and classes as integers: x.astype(numpy.uint8)");
  if (array.columns_first)
    refuse("the array is in Fortran order", "numpy.save(other, numpy.ascontiguousarray(x))");
  if (array.sizes.empty() || std::ranges::find(array.sizes, 0) != array.sizes.end())
    refuse("the array is empty", "");
  size_t bytes = c10::elementSize(*type);
  for (const int64_t size : array.sizes) {
    if (static_cast<size_t>(size) > array.values.size() / bytes) refuse_cut_npy(path);
    bytes *= static_cast<size_t>(size);
  }
  // The values are only read, and may lie at any address: an .npy aligns them to 64 bytes.
  out.values = at::from_blob(const_cast<char*>(array.values.data()), array.sizes,
                             at::TensorOptions().dtype(*type));
  return out;
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.is_directory() && !is_hidden(entry.path())) out.push_back(entry.path());
  std::ranges::sort(out);
  return out;
}

/// Images of a folder and of all folders in it. Adds the number of other files to `skipped`.
std::vector<fs::path> images_in(const fs::path& folder, int64_t& skipped) {
  std::vector<fs::path> out;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink)) {
    if (!entry.is_regular_file() || is_hidden(entry.path())) continue;
    if (is_image_name(entry.path()))
      out.push_back(entry.path());
    else
      ++skipped;
  }
  std::ranges::sort(out);
  return out;
}

}  // namespace

struct ImageSet::State {
  ImageForm form;
  std::string images_key, targets_key;
  std::vector<std::string> classes;
  std::vector<fs::path> images, masks;  ///< files of the samples; empty: arrays
  std::vector<int64_t> class_of;        ///< class of each file
  MappedArray image_array, target_array;
  int64_t size = 0, skipped = 0;

  [[noreturn]] static void refuse(const std::string& key, const fs::path& path,
                                  const std::string& reason, const std::string& help = "") {
    throw UserError(fmt::format("{} = \"{}\": {}", key, path.string(), reason), help);
  }

  void open_classes(const fs::path& folder) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      skipped += entry.is_regular_file() && !is_hidden(entry.path()) ? 1 : 0;
    for (const fs::path& of_class : folders_in(folder)) {
      classes.push_back(of_class.filename().string());
      for (const fs::path& image : images_in(of_class, skipped)) {
        images.push_back(image);
        class_of.push_back(std::ssize(classes) - 1);
      }
    }
    if (classes.empty())
      refuse(images_key, folder, "there is no folder in it",
             fmt::format("make a folder of images for each class in it, or name an .npy and {}",
                         targets_key));
    if (std::ssize(classes) > form.classes)
      refuse(images_key, folder,
             fmt::format("there are {} folders of classes, but vision.classes = {}", classes.size(),
                         form.classes));
    if (images.empty()) refuse(images_key, folder, "there is no PNG or JPEG in its folders");
  }

  void open_masks(const fs::path& folder, const fs::path& targets) {
    images = images_in(folder, skipped);
    if (images.empty()) refuse(images_key, folder, "there is no PNG or JPEG in it");
    // A mask has the path of its image within the folder, with the ending of a PNG.
    const auto name = [](const fs::path& path, const fs::path& from) {
      return path.lexically_relative(from).replace_extension().string();
    };
    std::map<std::string, fs::path> by_name;
    for (const fs::path& mask : images_in(targets, skipped)) by_name[name(mask, targets)] = mask;
    for (const fs::path& image : images) {
      const auto found = by_name.find(name(image, folder));
      if (found == by_name.end())
        refuse(targets_key, targets,
               fmt::format("there is no mask for {}", image.filename().string()),
               "a mask is a PNG with the name of its image");
      masks.push_back(found->second);
    }
  }

  void open_images(const fs::path& path) {
    image_array = map_array(path);
    const at::Tensor& x = image_array.values;
    const int64_t channels = x.dim() == 4 ? x.size(3) : 1;
    if (x.scalar_type() != at::kByte || (x.dim() != 3 && x.dim() != 4) ||
        (channels != form.channels && channels != 1))
      refuse(
          images_key, path,
          fmt::format("the array is [{}] {}, not (N, height, width, {}) or (N, height, width) "
                      "uint8",
                      fmt::join(x.sizes(), ", "), c10::toString(x.scalar_type()), form.channels));
  }

  void open_targets(const fs::path& path) {
    target_array = map_array(path);
    const at::Tensor& y = target_array.values;
    const bool fits = form.masks ? y.dim() == 3 : y.dim() == 1;
    if (!fits || y.size(0) != size)
      refuse(targets_key, path,
             fmt::format("the array is [{}], but {} images need ({}{})", fmt::join(y.sizes(), ", "),
                         size, size, form.masks ? ", height, width" : ""));
  }

  void open(const fs::path& path, const fs::path& targets) {
    for (const auto& [key, given] : {std::pair{&images_key, path}, {&targets_key, targets}})
      if (!given.empty() && !fs::exists(given)) refuse(*key, given, "it does not exist");
    const bool folder = fs::is_directory(path), named = !targets.empty();
    const bool target_folder = named && fs::is_directory(targets);
    if (form.masks && !named)
      refuse(targets_key, targets, "it names no masks",
             "vision.model = \"unet\" learns a class for each pixel");
    if (!form.masks && target_folder)
      refuse(targets_key, targets, "a folder of masks is for vision.model = \"unet\"");
    if (!form.masks && folder && named)
      refuse(targets_key, targets, "it does nothing: the folders of the images are their classes",
             "leave it out, or name an .npy of images");
    if (!folder && !named)
      refuse(targets_key, targets, fmt::format("it is empty, but {} is a file", images_key),
             "name an .npy with the targets");
    if (form.masks && folder != target_folder)
      refuse(targets_key, targets, "images and masks must both be folders, or both .npy");
    if (!folder) {
      open_images(path);
      size = image_array.values.size(0);
      return open_targets(targets);
    }
    form.masks ? open_masks(path, targets) : open_classes(path);
    size = std::ssize(images);
  }

  std::string name_of(int64_t index) const {
    return images.empty() ? fmt::format("sample {} (from 0) of {}", index, targets_key)
                          : (masks.empty() ? images : masks)[static_cast<size_t>(index)].string();
  }
};

ImageSet::ImageSet(const fs::path& images, const fs::path& targets, const ImageForm& form,
                   const std::string& images_key, const std::string& targets_key)
    : state_(std::make_unique<State>()) {
  state_->form = form;
  state_->images_key = images_key;
  state_->targets_key = targets_key;
  state_->open(images, targets);
}
ImageSet::~ImageSet() = default;
ImageSet::ImageSet(ImageSet&&) noexcept = default;
ImageSet& ImageSet::operator=(ImageSet&&) noexcept = default;

int64_t ImageSet::size() const { return state_->size; }
int64_t ImageSet::skipped() const { return state_->skipped; }
const std::vector<std::string>& ImageSet::classes() const { return state_->classes; }

ImageSet::Sample ImageSet::read(int64_t index) const {
  const State& s = *state_;
  const auto i = static_cast<size_t>(index);
  Sample out;
  if (s.images.empty()) {
    at::Tensor image = s.image_array.values[index];
    image = image.dim() == 3 ? image.permute({2, 0, 1}) : image.unsqueeze(0);
    out.image = image.expand({s.form.channels, -1, -1});
    out.target = s.target_array.values[index].to(at::kLong);
  } else {
    out.image = read_image(s.images[i], s.form.channels);
    out.target = s.form.masks ? read_mask(s.masks[i]).to(at::kLong)
                              : at::scalar_tensor(s.class_of[i], at::kLong);
  }
  const auto wrong = [&](const std::string& reason, const char* help) {
    throw UserError(reason, help, s.name_of(index));
  };
  if (s.form.masks && out.target.sizes() != out.image.sizes().slice(1))
    wrong(fmt::format("the mask has {} x {} pixels, its image {} x {}", out.target.size(1),
                      out.target.size(0), out.image.size(2), out.image.size(1)),
          "make them of one size");
  const auto low = out.target.min().item<int64_t>(), high = out.target.max().item<int64_t>();
  if (low < 0 || high >= s.form.classes)
    wrong(fmt::format("class {} is outside 0 to {}", low < 0 ? low : high, s.form.classes - 1),
          "set vision.classes to the number of classes; no value stands for \"ignore\"");
  return out;
}

ImagePart center_part(int64_t height, int64_t width, const ImageForm& form) {
  // The larger scale is the one that fills the form in both directions.
  const double scale = std::max(static_cast<double>(form.height) / static_cast<double>(height),
                                static_cast<double>(form.width) / static_cast<double>(width));
  const auto side = [scale](int64_t wanted, int64_t have) {
    return std::clamp<int64_t>(std::llround(static_cast<double>(wanted) / scale), 1, have);
  };
  ImagePart part{.height = side(form.height, height), .width = side(form.width, width)};
  part.top = (height - part.height) / 2;
  part.left = (width - part.width) / 2;
  return part;
}

ImagePart random_part(int64_t height, int64_t width, const ImageForm& form, uint64_t seed) {
  constexpr int kAttempts = 10;
  constexpr double kLeastArea = 0.08, kWidest = 4.0 / 3;
  const auto area = static_cast<double>(height * width);
  const double shape = static_cast<double>(form.width) / static_cast<double>(form.height);
  for (uint64_t i = 0; i < kAttempts; ++i) {
    const auto draw = [&](uint64_t number) {
      return random_uniform(seed, RandomStream::kCrop, 4 * i + number);
    };
    const double part_area = area * (kLeastArea + (1 - kLeastArea) * draw(0));
    const double ratio = shape * std::exp(std::log(kWidest) * (2 * draw(1) - 1));
    ImagePart part{.height = std::llround(std::sqrt(part_area / ratio)),
                   .width = std::llround(std::sqrt(part_area * ratio))};
    if (part.height < 1 || part.width < 1 || part.height > height || part.width > width) continue;
    part.top = static_cast<int64_t>(draw(2) * static_cast<double>(height - part.height + 1));
    part.left = static_cast<int64_t>(draw(3) * static_cast<double>(width - part.width + 1));
    return part;
  }
  return center_part(height, width, form);
}

ImageSet::Sample scaled(const ImageSet::Sample& sample, const ImagePart& part,
                        const ImageForm& form) {
  const auto cut = [&](const at::Tensor& x) {
    at::Tensor out = x.narrow(-2, part.top, part.height).narrow(-1, part.left, part.width);
    return part.mirrored ? out.flip({-1}) : out;
  };
  constexpr double kWhite = 255;
  const at::Tensor image = cut(sample.image).to(at::kFloat).div(kWhite).unsqueeze(0);
  ImageSet::Sample out{.image = at::_upsample_bilinear2d_aa(image, {form.height, form.width},
                                                            /*align_corners=*/false)
                                    .squeeze(0),
                       .target = sample.target};
  if (form.masks)
    out.target =
        at::_upsample_nearest_exact2d(cut(sample.target).to(at::kFloat).unsqueeze(0).unsqueeze(0),
                                      {form.height, form.width})
            .to(at::kLong)
            .squeeze(0)
            .squeeze(0);
  return out;
}

}  // namespace dovetail::data
