#include "vision/image.h"

#include <string>
#include <utility>

#include "vision/decoders.h"
#include "vision/orientation.h"

namespace percheron::vision {
namespace {

struct Decoder {
    ImageFormat format;
    Result<ImageHeader> (*read_header)(FileBytes);
    Status (*decode)(FileBytes, RgbImage&);
};

constexpr Decoder decoders[] = {
    {ImageFormat::png, read_png_header, decode_png},
    {ImageFormat::jpeg, read_jpeg_header, decode_jpeg},
    {ImageFormat::webp, read_webp_header, decode_webp},
};

// Told by the first bytes; what a URL or a client says about the type does not count.
const Decoder* decoder_of(FileBytes bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text.starts_with("\x89PNG\r\n\x1a\n")) return &decoders[0];
    if (text.starts_with("\xff\xd8\xff")) return &decoders[1];
    if (text.starts_with("RIFF") && text.size() >= 12 && text.substr(8, 4) == "WEBP") {
        return &decoders[2];
    }
    return nullptr;
}

Error too_large(std::string message) {
    return {ErrorCode::invalid_argument, std::move(message), image_too_large};
}

struct Examined {
    const Decoder* decoder;
    ImageHeader header;
};

Result<Examined> examine(FileBytes bytes, const ImageLimits& limits) {
    if (bytes.size() > limits.bytes) {
        return too_large("the image file has " + std::to_string(bytes.size()) + " bytes; at most " +
                         std::to_string(limits.bytes) + " are taken");
    }
    const Decoder* const decoder = decoder_of(bytes);
    if (decoder == nullptr) {
        return Error(ErrorCode::unsupported,
                     "the bytes are no PNG, JPEG or WebP image; send one of these formats");
    }
    PERCHERON_ASSIGN(const ImageHeader header, decoder->read_header(bytes));
    const std::string size = std::to_string(header.width) + " x " + std::to_string(header.height);
    if (header.width == 0 || header.height == 0) {
        return Error(ErrorCode::corrupt, "the image is " + size + " pixels; it shows nothing");
    }
    if (header.width > limits.side || header.height > limits.side) {
        return too_large("the image is " + size + " pixels; a side may have at most " +
                         std::to_string(limits.side));
    }
    if (header.height > limits.pixels / header.width) {
        return too_large("the image is " + size + " pixels; at most " +
                         std::to_string(limits.pixels) + " altogether are taken");
    }
    return Examined{decoder, header};
}

}  // namespace

std::string_view name_of(ImageFormat format) {
    switch (format) {
        case ImageFormat::png:
            return "PNG";
        case ImageFormat::jpeg:
            return "JPEG";
        case ImageFormat::webp:
            return "WebP";
    }
    return "unknown";
}

Result<ImageHeader> read_image_header(FileBytes bytes, const ImageLimits& limits) {
    PERCHERON_ASSIGN(const Examined examined, examine(bytes, limits));
    return examined.header;
}

Result<RgbImage> decode_image(FileBytes bytes, const ImageLimits& limits) {
    PERCHERON_ASSIGN(const Examined examined, examine(bytes, limits));
    RgbImage image;
    image.width = examined.header.width;
    image.height = examined.header.height;
    image.pixels.resize(image.width * image.height * 3);
    PERCHERON_TRY(examined.decoder->decode(bytes, image));
    return upright(std::move(image), examined.header.orientation);
}

}  // namespace percheron::vision
