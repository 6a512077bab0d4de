// Images of chat requests: from a data: URL to what the engine is given, and what is refused.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "server/recording_engine.h"
#include "server/replay_server.h"
#include "support/base64.h"
#include "support/plain_png.h"
#include "vision/cases.h"
#include "vision/patches.h"

namespace percheron::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

Json image_part(const std::string& url, int form = 0) {
    switch (form % 4) {
        case 0:
            return {{"type", "image_url"}, {"image_url", {{"url", url}, {"detail", "high"}}}};
        case 1:
            return {{"type", "image_url"}, {"image_url", url}};
        case 2:
            return {{"type", "image"}, {"image", url}};
        default:
            return {{"type", "input_image"}, {"image_url", url}};
    }
}

Json text_part(const std::string& text) {
    return {{"type", "text"}, {"text", text}};
}

std::string url_of(const Bytes& file, const std::string& type = "image/png") {
    return "data:" + type + ";base64," + base64(file);
}

// A picture in a format, what PIL makes of it, and how many tokens it fills.
struct Picture {
    std::string name;
    Bytes file;
    vision::RgbImage pixels;
    std::size_t tokens;
};

const std::vector<Picture>& pictures() {
    static const std::vector<Picture> all = [] {
        std::vector<Picture> list;
        for (const auto& wanted : vision::cases().at("decode")) {
            Picture picture;
            picture.name = wanted.at("name");
            picture.file = vision::from_hex(wanted.at("file"));
            picture.pixels = {wanted.at("width"), wanted.at("height"),
                              vision::from_hex(wanted.at("rgb"))};
            picture.tokens =
                vision::plan_canvas(picture.pixels.height, picture.pixels.width).tokens;
            list.push_back(std::move(picture));
        }
        return list;
    }();
    return all;
}

const Lines replies{{{"match", "."}, {"steps", {"Seen.</think>", "Done"}}}};

std::unique_ptr<ReplayServer> recording_server(Recording& recording, std::uint32_t context = 8192) {
    ReplayServerOptions options;
    options.context = context;
    options.wrap = [&](std::unique_ptr<Engine> engine) {
        return std::make_unique<RecordingEngine>(std::move(engine), recording);
    };
    return std::make_unique<ReplayServer>(replies, options);
}

int image_token() {
    static const auto model = std::move(*server::ServedModel::load(nano_folder()));
    return to_int(*model.format.tokenizer().added_token("<|image|>"));
}

// The images lie where the prompt has image tokens, one after another, and nowhere else.
void expect_images_fill_placeholders(const GenerationRequest& request) {
    std::vector<bool> filled(request.prompt.size(), false);
    std::size_t free = 0;
    for (const PromptImage& image : request.images) {
        ASSERT_GE(image.first, free);
        free = image.first + image.count;
        ASSERT_LE(free, request.prompt.size());
        std::fill(filled.begin() + image.first, filled.begin() + static_cast<std::ptrdiff_t>(free),
                  true);
        EXPECT_EQ(image.count * 4, image.grid_height * image.grid_width);
        ASSERT_NE(image.canvas, nullptr);
        EXPECT_EQ(image.canvas->height, image.grid_height * 14);
        EXPECT_EQ(image.canvas->width, image.grid_width * 14);
        EXPECT_EQ(image.canvas->pixels.size(),
                  std::size_t{3} * image.canvas->height * image.canvas->width);
    }
    for (std::size_t i = 0; i < filled.size(); ++i)
        ASSERT_EQ(to_int(request.prompt[i]) == image_token(), filled[i]) << i;
}

bool shows(const PromptImage& image, const Picture& picture) {
    const vision::Canvas canvas = vision::plan_canvas(picture.pixels.height, picture.pixels.width);
    return image.canvas->pixels == vision::lay_on_canvas(picture.pixels, canvas).pixels;
}

// Every format that is decoded, in every form of part: the engine gets the picture, the prompt
// grows by its tokens and by nothing else, and the usage says so.
TEST(ImagesTest, DataUrlsOfEveryFormatReachTheEngine) {
    Recording recording;
    const auto server = recording_server(recording);
    const auto prompt_tokens = [&](const Json& content, bool stream) {
        Json body{{"messages", Json::array({{{"role", "user"}, {"content", content}}})}};
        body["stream"] = stream;
        body["stream_options"] = {{"include_usage", true}};
        const ClientReply reply = server->chat(body);
        EXPECT_EQ(reply.status, 200) << reply.body.substr(0, 300);
        if (reply.status != 200) return Json();
        return stream ? EventStream(reply.body).events.back()["usage"] : reply.json()["usage"];
    };
    const Json none = prompt_tokens(Json::array({text_part("What is it?")}), false);
    EXPECT_FALSE(none["prompt_tokens_details"].contains("image_tokens"));
    int form = 0;
    for (const Picture& picture : pictures()) {
        SCOPED_TRACE(picture.name);
        const Json content =
            Json::array({image_part(url_of(picture.file), form), text_part("What is it?")});
        const Json usage = prompt_tokens(content, form++ % 2 == 0);
        ASSERT_TRUE(usage.is_object());
        // Begin and end of the image beside its tokens.
        EXPECT_EQ(usage["prompt_tokens"].get<std::size_t>(),
                  none["prompt_tokens"].get<std::size_t>() + 2 + picture.tokens);
        EXPECT_EQ(usage["prompt_tokens_details"]["image_tokens"], picture.tokens);
        const GenerationRequest request = recording.latest();
        expect_images_fill_placeholders(request);
        ASSERT_EQ(request.images.size(), 1u);
        EXPECT_TRUE(shows(request.images[0], picture));
    }
    EXPECT_GT(form, 25);
}

// Any number of images anywhere in a conversation, and tool results that the template puts into the
// order of their calls: each stands where its message is printed.
TEST(ImagesTest, ManyImagesEachStandInTheirOwnPlace) {
    Recording recording;
    const auto server = recording_server(recording, 1 << 20);
    std::mt19937 random(21);
    const auto model = std::move(*server::ServedModel::load(nano_folder()));
    for (int round = 0; round < 60; ++round) {
        std::vector<std::size_t> expected;  // pictures in the order of the prompt
        const auto pick = [&](std::vector<std::size_t>& order) {
            order.push_back(random() % pictures().size());
            return image_part(url_of(pictures()[order.back()].file), static_cast<int>(random()));
        };
        // Parts with the pictures' words, which must keep their places between the pictures.
        const auto content = [&](std::vector<std::size_t>& order) {
            Json parts = Json::array();
            const std::size_t count = random() % 4;
            for (std::size_t i = 0; i < count; ++i) {
                if (random() % 2 == 0) parts.push_back(text_part("<|image|> see [[picture 0-0]]"));
                parts.push_back(pick(order));
            }
            parts.push_back(text_part("so"));
            return parts;
        };
        Json messages = Json::array();
        const std::size_t turns = 1 + random() % 3;
        for (std::size_t turn = 0; turn < turns; ++turn) {
            messages.push_back({{"role", "user"}, {"content", content(expected)}});
            const std::size_t calls = random() % 4;
            if (calls == 0) continue;
            Json call_list = Json::array();
            std::vector<std::vector<std::size_t>> of_call(calls);
            Json results = Json::array();
            for (std::size_t call = 0; call < calls; ++call) {
                const std::string id = "c" + std::to_string(turn) + "_" + std::to_string(call);
                call_list.push_back({{"id", id},
                                     {"type", "function"},
                                     {"function", {{"name", "look"}, {"arguments", "{}"}}}});
                results.push_back(
                    {{"role", "tool"}, {"tool_call_id", id}, {"content", content(of_call[call])}});
            }
            messages.push_back(
                {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", call_list}});
            std::shuffle(results.begin(), results.end(), random);
            for (Json& result : results)
                messages.push_back(std::move(result));
            for (const auto& order : of_call)
                expected.insert(expected.end(), order.begin(), order.end());
        }
        const ClientReply reply = server->chat({{"messages", messages}});
        ASSERT_EQ(reply.status, 200) << reply.body.substr(0, 300);
        const GenerationRequest request = recording.latest();
        expect_images_fill_placeholders(request);
        ASSERT_EQ(request.images.size(), expected.size());
        std::size_t tokens = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(shows(request.images[i], pictures()[expected[i]])) << i;
            tokens += request.images[i].count;
        }
        EXPECT_EQ(reply.json()["usage"]["prompt_tokens"], request.prompt.size());
        if (tokens > 0) {
            EXPECT_EQ(reply.json()["usage"]["prompt_tokens_details"]["image_tokens"], tokens);
        }
        // Counting the same conversation gives the same ids.
        const Json counted = server->connect()
                                 .request("POST", "/tokenize", Json{{"messages", messages}}.dump())
                                 .json();
        EXPECT_EQ(counted["count"], request.prompt.size());
        if (testing::Test::HasFailure()) break;
    }
}

TEST(ImagesTest, EqualPicturesHaveEqualHashesAndOthersDoNot) {
    Recording recording;
    const auto server = recording_server(recording, 1 << 20);
    Json content = Json::array();
    for (int twice = 0; twice < 2; ++twice) {
        for (const Picture& picture : pictures())
            content.push_back(image_part(url_of(picture.file)));
    }
    content.push_back(text_part("Compare."));
    const ClientReply reply =
        server->chat({{"messages", Json::array({{{"role", "user"}, {"content", content}}})}});
    ASSERT_EQ(reply.status, 200) << reply.body.substr(0, 300);
    const GenerationRequest request = recording.latest();
    const std::size_t count = pictures().size();
    ASSERT_EQ(request.images.size(), 2 * count);
    std::size_t different = 0;
    for (std::size_t a = 0; a < count; ++a) {
        EXPECT_EQ(request.images[a].content_hash, request.images[a + count].content_hash);
        for (std::size_t b = 0; b < count; ++b) {
            const bool same =
                request.images[a].canvas->pixels == request.images[b].canvas->pixels &&
                request.images[a].grid_width == request.images[b].grid_width;
            EXPECT_EQ(request.images[a].content_hash == request.images[b].content_hash, same);
            different += same ? 0 : 1;
        }
    }
    EXPECT_GT(different, count);
}

// Sizes whose number of tokens is known.
TEST(ImagesTest, SizesCountAsTheModelsProcessorCountsThem) {
    Recording recording;
    const auto server = recording_server(recording, 1 << 20);
    struct Size {
        std::uint32_t height, width;
        std::size_t tokens;
    };
    for (const Size& size : {Size{14, 14, 16}, Size{64, 128, 18}, Size{100, 100, 16},
                             Size{224, 224, 64}, Size{300, 500, 198}, Size{448, 448, 256},
                             Size{720, 1280, 1196}, Size{1080, 1920, 2691}}) {
        const Json content = Json::array(
            {image_part(url_of(plain_png(size.height, size.width))), text_part("Size?")});
        const ClientReply reply =
            server->chat({{"messages", Json::array({{{"role", "user"}, {"content", content}}})}});
        ASSERT_EQ(reply.status, 200) << reply.body.substr(0, 300);
        EXPECT_EQ(reply.json()["usage"]["prompt_tokens_details"]["image_tokens"], size.tokens);
    }
}

void expect_refused(const ClientReply& reply, const std::string& code) {
    ASSERT_EQ(reply.status, 400) << reply.body.substr(0, 300);
    const Json error = reply.json()["error"];
    EXPECT_EQ(error["code"], code) << reply.body;
    EXPECT_FALSE(error["param"].is_null()) << reply.body;
    const std::string message = error["message"];
    EXPECT_FALSE(message.empty());
    EXPECT_LT(message.size(), 300u);
    EXPECT_EQ(message.find('\n'), std::string::npos);
}

class HostileImagesTest : public testing::Test {
  protected:
    ClientReply send(const std::string& url, int form = 0) {
        const Json content = Json::array({text_part("See"), image_part(url, form)});
        return server->chat(
            {{"messages", Json::array({{{"role", "user"}, {"content", content}}})}});
    }

    Recording recording;
    std::unique_ptr<ReplayServer> server = recording_server(recording);
};

// Cut at every length: refused with a sentence, or decoded when only ornament was missing.
TEST_F(HostileImagesTest, CutFilesAreRefused) {
    std::size_t refused = 0;
    std::size_t sent = 0;
    for (const Picture& picture : pictures()) {
        const std::size_t size = picture.file.size();
        for (std::size_t part = 0; part < 8; ++part) {
            const Bytes cut(picture.file.begin(),
                            picture.file.begin() + static_cast<std::ptrdiff_t>(size * part / 8));
            const ClientReply reply = send(url_of(cut), static_cast<int>(part));
            ++sent;
            if (reply.status == 200) continue;
            ++refused;
            expect_refused(reply, "invalid_value");
            if (testing::Test::HasFatalFailure()) return;
        }
    }
    EXPECT_GT(refused, sent * 3 / 4);
    server->settle();
}

TEST_F(HostileImagesTest, DamagedFilesAreAnswered) {
    std::mt19937 random(77);
    for (int round = 0; round < 600; ++round) {
        Bytes file = pictures()[random() % pictures().size()].file;
        const std::size_t changes = 1 + random() % 6;
        for (std::size_t i = 0; i < changes; ++i)
            file[random() % file.size()] = static_cast<std::uint8_t>(random());
        const ClientReply reply = send(url_of(file));
        if (reply.status == 200) continue;
        const std::string code = reply.json()["error"]["code"];
        expect_refused(reply, code == "invalid_value" || code == "context_length_exceeded"
                                  ? code
                                  : "request_too_large");
        if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(server->get("/health").status, 200);
}

TEST_F(HostileImagesTest, OtherBytesThanTheTypeSaysAreRefusedByTheirBytes) {
    const auto text = [](std::string_view content) {
        return Bytes(content.begin(), content.end());
    };
    for (const std::string_view content :
         {"", "hello", "<svg xmlns='http://www.w3.org/2000/svg'/>", "GIF89a\1\0\1\0", "%PDF-1.7",
          "BM", "\x89PNG\r\n\x1a\n", "\xff\xd8\xff", "RIFF\4\0\0\0WEBP"}) {
        for (const char* type : {"image/png", "image/jpeg", "text/html", ""})
            expect_refused(send(url_of(text(content), type)), "invalid_value");
    }
    // A wrong type before a real picture does no harm: the bytes say what it is.
    for (const char* type : {"image/jpeg", "application/octet-stream", ""})
        EXPECT_EQ(send(url_of(pictures()[0].file, type)).status, 200);
    expect_refused(send("data:image/png;base64,*"), "invalid_value");
    expect_refused(send("data:image/png;base64"), "invalid_value");
}

// The header alone says that a picture is too large for the limits or for the context: nothing is
// decoded and nobody waits.
TEST_F(HostileImagesTest, BombsAreRefusedByTheirHeader) {
    const auto bomb = [](std::uint32_t height, std::uint32_t width) {
        return url_of(png_header_only(height, width));
    };
    expect_refused(send(bomb(0x7fffffff, 0x7fffffff)), "request_too_large");
    expect_refused(send(bomb(65536, 1)), "request_too_large");
    expect_refused(send(bomb(30000, 30000)), "request_too_large");
    expect_refused(send(bomb(0, 5)), "invalid_value");
    // 8000 tokens each: two fill more than this context.
    const std::string large = url_of(png_header_only(4000, 4000));
    const Json content = Json::array({image_part(large), image_part(large)});
    const ClientReply reply =
        server->chat({{"messages", Json::array({{{"role", "user"}, {"content", content}}})}});
    expect_refused(reply, "context_length_exceeded");
    EXPECT_NE(reply.json()["error"]["message"].get<std::string>().find("8192"), std::string::npos);
    EXPECT_EQ(recording.count(), 0u);
}

// However large the context: pictures that would take minutes to decode are not begun.
TEST(ImagesTest, PixelsOfOneRequestAreBounded) {
    Recording recording;
    const auto server = recording_server(recording, 1 << 20);
    const std::string large = url_of(png_header_only(8000, 8000));
    for (const std::size_t count : {17, 100}) {
        const Json content(count, image_part(large));
        const ClientReply reply =
            server->chat({{"messages", Json::array({{{"role", "user"}, {"content", content}}})}});
        expect_refused(reply, "request_too_large");
    }
    EXPECT_EQ(recording.count(), 0u);
}

TEST(ImagesTest, WithoutAVisionPartImagesAreRefused) {
    ReplayServerOptions options;
    options.vision = false;
    const ReplayServer server(replies, options);
    for (int form = 0; form < 4; ++form) {
        const Json messages = Json::array(
            {{{"role", "user"},
              {"content", Json::array({image_part(url_of(pictures()[0].file), form)})}}});
        expect_refused(server.chat({{"messages", messages}}), "vision_unavailable");
        const ClientReply counted =
            server.connect().request("POST", "/tokenize", Json{{"messages", messages}}.dump());
        expect_refused(counted, "vision_unavailable");
    }
    EXPECT_EQ(server.chat({{"messages", user_message("text")}}).status, 200);
}

}  // namespace
}  // namespace percheron::test
