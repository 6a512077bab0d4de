#include "server/chat_images.h"

#include <utility>

#include <openssl/evp.h>

#include "server/data_url.h"
#include "text/image_parts.h"
#include "vision/image.h"

namespace percheron::server {
namespace {

// `Part` is Json or const Json, `String` std::string alike.
template <class String, class Part>
String* find_url(Part& part) {
    for (const char* name : {"image_url", "image"}) {
        const auto found = part.find(name);
        if (found == part.end()) continue;
        if (found->is_string()) return found->template get_ptr<String*>();
        if (!found->is_object()) continue;
        const auto url = found->find("url");
        if (url != found->end() && url->is_string()) return url->template get_ptr<String*>();
    }
    return nullptr;
}

ApiError wrong_image(const std::string& place, const Error& error) {
    const bool too_large = error.reason() == vision::image_too_large;
    return {400, too_large ? "request_too_large" : "invalid_value", place + ": " + error.message(),
            place};
}

// Of all pictures of one request: decoding them takes seconds.
constexpr std::size_t most_pixels = std::size_t{1} << 30;

// One file, read as far as its header.
struct ReadFile {
    std::vector<std::uint8_t> bytes;
    vision::Canvas canvas;
};

class Sha256 {
  public:
    Sha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_sha256(), nullptr); }
    ~Sha256() { EVP_MD_CTX_free(context_); }
    Sha256(const Sha256&) = delete;
    Sha256& operator=(const Sha256&) = delete;

    void add(const void* bytes, std::size_t count) { EVP_DigestUpdate(context_, bytes, count); }
    std::array<std::uint8_t, 32> end() {
        std::array<std::uint8_t, 32> hash{};
        EVP_DigestFinal_ex(context_, hash.data(), nullptr);
        return hash;
    }

  private:
    EVP_MD_CTX* context_;
};

std::array<std::uint8_t, 32> hash_of(const ImageCanvas& canvas) {
    constexpr std::string_view domain = "percheron image canvas 1";
    Sha256 hash;
    hash.add(domain.data(), domain.size());
    hash.add(&canvas.height, sizeof canvas.height);
    hash.add(&canvas.width, sizeof canvas.width);
    hash.add(canvas.mean.data(), sizeof canvas.mean);
    hash.add(canvas.deviation.data(), sizeof canvas.deviation);
    hash.add(canvas.pixels.data(), canvas.pixels.size());
    return hash.end();
}

Result<PromptImage> decode(const ReadFile& file, const VisionFormat& format) {
    PERCHERON_ASSIGN(const vision::RgbImage picture, vision::decode_image(file.bytes));
    auto canvas = std::make_shared<ImageCanvas>();
    canvas->height = static_cast<std::uint32_t>(file.canvas.height);
    canvas->width = static_cast<std::uint32_t>(file.canvas.width);
    canvas->pixels = vision::lay_on_canvas(picture, file.canvas).pixels;
    canvas->mean = format.scale.mean;
    canvas->deviation = format.scale.deviation;
    PromptImage image;
    image.count = static_cast<std::uint32_t>(file.canvas.tokens);
    image.grid_height = static_cast<std::uint32_t>(file.canvas.height / format.canvas.patch);
    image.grid_width = static_cast<std::uint32_t>(file.canvas.width / format.canvas.patch);
    image.content_hash = hash_of(*canvas);
    image.canvas = std::move(canvas);
    return image;
}

}  // namespace

const std::string* image_url_of(const Json& part) {
    return find_url<const std::string>(part);
}

std::vector<ImagePart> take_image_parts(Json& messages) {
    std::vector<ImagePart> parts;
    for_each_image_part(messages, [&](Json& part, const std::string& place) {
        std::string* const url = find_url<std::string>(part);
        parts.push_back({place, url == nullptr ? std::string() : std::exchange(*url, "")});
    });
    return parts;
}

ChatImages read_chat_images(std::vector<ImagePart> parts, const std::optional<VisionFormat>& format,
                            const EngineDescription& engine) {
    ChatImages result;
    if (parts.empty()) return result;
    if (!engine.vision || !format) {
        const std::string& place = parts.front().place;
        result.error = ApiError{
            400, "vision_unavailable",
            place + " is an image, and the model is served without its vision part; send text",
            place};
        return result;
    }
    std::vector<ReadFile> files;
    std::size_t tokens = 0;
    std::size_t pixels = 0;
    for (ImagePart& part : parts) {
        auto bytes = bytes_of_data_url(std::exchange(part.url, ""));
        if (!bytes.ok()) {
            result.error = invalid_value(part.place, part.place + " " + bytes.error().message());
            return result;
        }
        const auto header = vision::read_image_header(*bytes);
        if (!header.ok()) {
            result.error = wrong_image(part.place, header.error());
            return result;
        }
        const vision::Canvas canvas =
            vision::plan_canvas(header->upright_height(), header->upright_width(), format->canvas);
        tokens += canvas.tokens;
        pixels += header->width * header->height;
        files.push_back({std::move(*bytes), canvas});
    }
    if (tokens >= engine.context_tokens) {
        result.error = ApiError{400, "context_length_exceeded",
                                "the images alone have " + std::to_string(tokens) +
                                    " tokens and the model's context is " +
                                    std::to_string(engine.context_tokens) +
                                    " tokens; send fewer or smaller images",
                                "messages"};
        return result;
    }
    if (pixels > most_pixels) {
        result.error =
            ApiError{400, "request_too_large",
                     "the images have " + std::to_string(pixels) + " pixels altogether; at most " +
                         std::to_string(most_pixels) + " are taken; send fewer or smaller images",
                     "messages"};
        return result;
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
        auto image = decode(files[i], *format);
        if (!image.ok()) {
            result.error = wrong_image(parts[i].place, image.error());
            return result;
        }
        files[i].bytes = {};
        result.images.push_back(std::move(*image));
    }
    return result;
}

std::vector<PromptImage> place_images(std::vector<PromptImage> images, ChatPrompt& prompt) {
    std::vector<PromptImage> placed;
    std::vector<TokenId> ids;
    auto rest = prompt.ids.cbegin();  // what is not yet in `ids`
    for (std::size_t k = 0; k < prompt.image_positions.size(); ++k) {
        const auto placeholder =
            prompt.ids.cbegin() + static_cast<std::ptrdiff_t>(prompt.image_positions[k]);
        PromptImage image = images[prompt.image_parts[k]];
        ids.insert(ids.end(), rest, placeholder);
        image.first = static_cast<std::uint32_t>(ids.size());
        prompt.image_positions[k] = image.first;
        ids.insert(ids.end(), image.count, *placeholder);
        rest = placeholder + 1;
        placed.push_back(std::move(image));
    }
    ids.insert(ids.end(), rest, prompt.ids.cend());
    prompt.ids = std::move(ids);
    return placed;
}

}  // namespace percheron::server
