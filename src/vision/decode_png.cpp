// PNG by libpng.  Chunks that say how colours are meant or what a text is are never looked into by
// the library: they change no value here, and each is a parser and an allocation less.
#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <string>

#include <png.h>

#include "vision/decoders.h"
#include "vision/orientation.h"

namespace percheron::vision {
namespace {

constexpr std::size_t signature_size = 8;

std::uint32_t big_endian(const std::uint8_t* at) {
    return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 |
           at[3];
}

Error corrupt(const std::string& what) {
    return {ErrorCode::corrupt, "the PNG image is damaged (" + what + "); send the whole file"};
}

struct Chunk {
    std::string_view name;
    FileBytes data;
};

// The chunk at `offset`, which moves behind it; nothing at the end or where the file is cut.
std::optional<Chunk> next_chunk(FileBytes bytes, std::size_t& offset) {
    constexpr std::size_t frame = 12;  // length, name, checksum
    if (bytes.size() - offset < frame) return std::nullopt;
    const std::size_t length = big_endian(bytes.data() + offset);
    if (length > bytes.size() - offset - frame) return std::nullopt;
    Chunk chunk;
    chunk.name = {reinterpret_cast<const char*>(bytes.data() + offset + 4), 4};
    chunk.data = bytes.subspan(offset + 8, length);
    offset += frame + length;
    return chunk;
}

// The text of an iTXt chunk that holds XMP and is not compressed.
std::optional<FileBytes> xmp_packet(FileBytes text) {
    constexpr std::string_view keyword("XML:com.adobe.xmp\0", 18);
    const std::string_view view(reinterpret_cast<const char*>(text.data()), text.size());
    constexpr std::size_t flags = 2;  // compressed or not, and how
    if (!view.starts_with(keyword) || view.size() < keyword.size() + flags) return std::nullopt;
    if (view[keyword.size()] != 0) return std::nullopt;
    return text.subspan(keyword.size() + flags);
}

int orientation_of(FileBytes bytes) {
    std::optional<int> exif;
    std::optional<int> xmp;
    std::size_t offset = signature_size;
    while (const auto chunk = next_chunk(bytes, offset)) {
        if (chunk->name == "eXIf") exif = exif_orientation(chunk->data);
        if (chunk->name == "iTXt") {
            if (const auto packet = xmp_packet(chunk->data)) xmp = xmp_orientation(*packet);
        }
        if (chunk->name == "IEND") break;
    }
    return effective_orientation(exif, xmp);
}

// What the library's callbacks need, and what it owns.  Nothing in here has to be unwound when an
// error jumps out of the library.
struct Reader {
    FileBytes rest;
    std::array<char, 128> fault = {};
    std::array<png_color, 256> palette = {};
    bool indexed = false;
    bool wide_gray = false;
    png_structp png = nullptr;
    png_infop info = nullptr;

    ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

void on_error(png_structp png, png_const_charp message) {
    auto* const reader = static_cast<Reader*>(png_get_error_ptr(png));
    std::strncpy(reader->fault.data(), message, reader->fault.size() - 1);
    png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep out, std::size_t size) {
    auto* const reader = static_cast<Reader*>(png_get_io_ptr(png));
    if (size > reader->rest.size()) png_error(png, "it ends early");
    std::copy_n(reader->rest.data(), size, out);
    reader->rest = reader->rest.subspan(size);
}

constexpr char ignored_chunks[] =
    "bKGD\0cHRM\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0tEXt\0"
    "tIME\0tRNS\0zTXt";

// Asks for rows of RGB, of palette indices (one a byte) or of 16-bit gray.
void choose_rows(Reader& reader) {
    png_structp png = reader.png;
    const int depth = png_get_bit_depth(png, reader.info);
    const int color = png_get_color_type(png, reader.info);
    if (color == PNG_COLOR_TYPE_PALETTE) {
        reader.indexed = true;
        png_colorp entries = nullptr;
        int count = 0;
        if (png_get_PLTE(png, reader.info, &entries, &count) == 0) png_error(png, "no palette");
        std::copy_n(entries, std::min(count, 256), reader.palette.begin());
        png_set_packing(png);
        return;
    }
    reader.wide_gray = color == PNG_COLOR_TYPE_GRAY && depth == 16;
    if (reader.wide_gray) return;
    if (depth == 16) png_set_strip_16(png);
    if (depth < 8) png_set_expand_gray_1_2_4_to_8(png);
    if ((color & PNG_COLOR_MASK_ALPHA) != 0) png_set_strip_alpha(png);
    if ((color & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png);
}

void read_rows(Reader& reader, RgbImage& image) {
    png_structp png = reader.png;
    png_set_read_fn(png, &reader, on_read);
    png_set_user_limits(png, static_cast<png_uint_32>(image.width),
                        static_cast<png_uint_32>(image.height));
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER,
                                reinterpret_cast<png_const_bytep>(ignored_chunks),
                                sizeof(ignored_chunks) / 5);
    png_read_info(png, reader.info);
    choose_rows(reader);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, reader.info);
    const std::size_t row_bytes = image.width * (reader.indexed ? 1 : reader.wide_gray ? 2 : 3);
    if (png_get_image_width(png, reader.info) != image.width ||
        png_get_image_height(png, reader.info) != image.height ||
        png_get_rowbytes(png, reader.info) != row_bytes) {
        png_error(png, "its header contradicts itself");
    }
    for (int pass = 0; pass < passes; ++pass) {
        for (std::size_t y = 0; y < image.height; ++y) {
            png_read_row(png, image.row(y), nullptr);
        }
    }
}

bool read_guarded(Reader& reader, RgbImage& image) {
    if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
    read_rows(reader, image);
    return true;
}

// Rows of fewer bytes stand at the front of their place; from the last pixel on, none is
// overwritten before it is read.
void widen_rows(const Reader& reader, RgbImage& image) {
    for (std::size_t y = 0; y < image.height; ++y) {
        std::uint8_t* const row = image.row(y);
        for (std::size_t x = image.width; x-- > 0;) {
            if (reader.indexed) {
                const png_color color = reader.palette[row[x]];
                row[3 * x] = color.red;
                row[3 * x + 1] = color.green;
                row[3 * x + 2] = color.blue;
            } else {
                const std::uint8_t value = row[2 * x] != 0 ? 255 : row[2 * x + 1];
                std::fill_n(row + 3 * x, 3, value);
            }
        }
    }
}

}  // namespace

Result<ImageHeader> read_png_header(FileBytes bytes) {
    std::size_t offset = signature_size;
    const auto first = next_chunk(bytes, offset);
    if (!first || first->name != "IHDR" || first->data.size() != 13) return corrupt("no header");
    ImageHeader header;
    header.format = ImageFormat::png;
    header.width = big_endian(first->data.data());
    header.height = big_endian(first->data.data() + 4);
    header.orientation = orientation_of(bytes);
    return header;
}

Status decode_png(FileBytes bytes, RgbImage& image) {
    Reader reader;
    reader.rest = bytes;
    reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
    if (reader.png != nullptr) reader.info = png_create_info_struct(reader.png);
    if (reader.info == nullptr) {
        return Error(ErrorCode::out_of_memory, "there is no memory left for decoding a PNG image");
    }
    if (!read_guarded(reader, image)) return corrupt(reader.fault.data());
    if (reader.indexed || reader.wide_gray) widen_rows(reader, image);
    return {};
}

}  // namespace percheron::vision
