// What crosses between front and rank comes back as it was, and bytes that nobody wrote are refused
// without harm.
#include "parallel/messages.h"

#include <algorithm>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "parallel/control_link.h"

namespace percheron::parallel {
namespace {

constexpr std::size_t head = 5;  // of a frame: length and kind

std::span<const std::uint8_t> fields_of(const Message& frame) {
    return std::span(frame).subspan(head);
}

// Random, but for what a reader checks.
class Samples {
  public:
    explicit Samples(unsigned seed) : random_(seed) {}

    std::uint32_t number(std::uint32_t below) { return random_() % below; }
    bool coin() { return number(2) == 1; }
    std::string text() {
        std::string result(number(20), ' ');
        for (char& c : result)
            c = static_cast<char>(number(256));
        return result;
    }
    float real() { return static_cast<float>(number(1000)) / 7.0f; }

    Submit submit() {
        Submit message;
        message.sink = number(9);
        message.request = RequestId(random_());
        message.rules = text();
        GenerationRequest& request = message.content;
        for (std::uint32_t i = number(50); i > 0; --i)
            request.prompt.push_back(TokenId(static_cast<int>(number(1000))));
        std::shared_ptr<ImageCanvas> canvas;
        for (std::uint32_t i = number(4); i > 0; --i) {
            if (canvas == nullptr || coin()) {
                canvas = std::make_shared<ImageCanvas>();
                canvas->height = number(100);
                canvas->pixels.resize(number(300), static_cast<std::uint8_t>(number(256)));
                canvas->mean[1] = real();
            }
            PromptImage& image = request.images.emplace_back();
            image.first = number(1000);
            image.grid_width = number(100);
            image.canvas = canvas;
            image.content_hash[31] = static_cast<std::uint8_t>(number(256));
        }
        request.sampling.temperature = real();
        request.sampling.logit_bias.resize(number(4), {TokenId(3), real()});
        if (coin()) request.sampling.seed = random_();
        request.sampling.top_logprobs = static_cast<int>(number(20)) - 1;
        request.choices = number(9);
        if (coin()) request.max_tokens = number(1000);
        request.ignore_eos = coin();
        if (coin()) request.loop_guard = coin();
        request.report_progress = coin();
        request.cache_salt = text();
        request.priority = -static_cast<int>(number(5));
        if (coin()) request.deadline = std::chrono::steady_clock::now();
        return message;
    }

    Events events() {
        Events message;
        message.sink = number(9);
        EngineEvents& events = message.events;
        events.tokens.resize(number(30), TokenId(static_cast<int>(number(1000))));
        for (std::uint32_t i = number(10); i > 0; --i) {
            EngineEvents::Logprobs& logprobs = events.logprobs.emplace_back();
            logprobs.chosen = real();
            logprobs.top.resize(number(4), {TokenId(5), real()});
        }
        events.admitted.resize(number(4), {RequestId(random_()), number(4), number(99), random_()});
        events.progress.resize(number(4), {RequestId(random_()), 1, 2, 3});
        const auto size = static_cast<std::uint32_t>(events.tokens.size());
        for (std::uint32_t i = number(4); i > 0; --i) {
            EngineEvents::Tokens& run = events.runs.emplace_back();
            run.first = number(size + 1);
            run.count = number(size - run.first + 1);
            run.drafted = number(4);
        }
        for (std::uint32_t i = number(4); i > 0; --i) {
            EngineEvents::Finished& finished = events.finished.emplace_back();
            finished.request = RequestId(random_());
            finished.reason = static_cast<FinishReason>(number(7));
            if (finished.reason == FinishReason::failed) {
                finished.error = Error(ErrorCode::internal, text(), reasons::constraint_too_costly);
            }
            finished.statistics.proposer = text();
            finished.statistics.accepted_per_position.resize(number(5), 7);
            finished.statistics.decode_seconds = real();
        }
        return message;
    }

  private:
    std::mt19937_64 random_;
};

// Equal bytes are equal values: every field is written.
template <class T>
void expect_round_trip(const T& message) {
    const Message frame = frame_of(message);
    T back;
    ASSERT_TRUE(read(fields_of(frame), back));
    EXPECT_EQ(frame_of(back), frame);
}

TEST(Messages, ComeBackAsTheyWere) {
    for (unsigned seed = 0; seed < 300; ++seed) {
        Samples samples(seed);
        expect_round_trip(samples.submit());
        expect_round_trip(samples.events());
    }
    EngineDescription description;
    description.model_name = "nano";
    description.stop_tokens = {TokenId(3)};
    description.limits.image_memory = 77;
    expect_round_trip(Ready{description});
    EngineStatus status;
    status.failure = "none";
    status.prefix_disk.dropped = 8;
    expect_round_trip(StatusReport{status});
    expect_round_trip(Hello{own_build()});
    expect_round_trip(Cancel{RequestId(4), Engine::all_choices});
    const Message refused =
        frame_of(Refused{Error(ErrorCode::corrupt, "bad", reasons::queue_full)});
    Refused back;
    ASSERT_TRUE(read(fields_of(refused), back));
    EXPECT_EQ(back.error.code(), ErrorCode::corrupt);
    EXPECT_EQ(back.error.message(), "bad");
    EXPECT_EQ(back.error.reason(), reasons::queue_full);
}

TEST(Messages, SharedCanvasesCrossOnceAndStayShared) {
    Submit message;
    auto canvas = std::make_shared<ImageCanvas>();
    canvas->pixels.resize(10000, 3);
    for (int i = 0; i < 3; ++i)
        message.content.images.emplace_back().canvas = canvas;
    const Message frame = frame_of(message);
    EXPECT_LT(frame.size(), 11000u);
    Submit back;
    ASSERT_TRUE(read(fields_of(frame), back));
    EXPECT_EQ(back.content.images[0].canvas, back.content.images[2].canvas);
    EXPECT_EQ(back.content.images[1].canvas->pixels, canvas->pixels);
}

// Whatever is read of them, no list is left that a run points out of.
void read_all(std::span<const std::uint8_t> bytes) {
    Events events;
    if (read(bytes, events)) {
        for (const auto& run : events.events.runs)
            ASSERT_LE(std::uint64_t{run.first} + run.count, events.events.tokens.size());
    }
    Submit submit;
    if (read(bytes, submit)) {
        for (const auto& image : submit.content.images)
            ASSERT_NE(image.canvas, nullptr);
    }
    Hello hello;
    (void)read(bytes, hello);
    Stage stage;
    (void)read(bytes, stage);
    Ready ready;
    (void)read(bytes, ready);
    Refused refused;
    (void)read(bytes, refused);
    Rejected rejected;
    (void)read(bytes, rejected);
    StatusReport report;
    (void)read(bytes, report);
    Cancel cancel;
    (void)read(bytes, cancel);
}

TEST(Messages, CutChangedAndRandomBytesDoNoHarm) {
    std::mt19937 random(1);
    for (unsigned seed = 0; seed < 100; ++seed) {
        Samples samples(seed);
        for (const Message& frame : {frame_of(samples.events()), frame_of(samples.submit())}) {
            const auto fields = fields_of(frame);
            for (std::size_t size = 0; size < fields.size(); ++size) {
                Events events;
                Submit submit;
                EXPECT_FALSE(read(fields.first(size), events) && frame[4] == 4);
                EXPECT_FALSE(read(fields.first(size), submit) && frame[4] == 7);
            }
            for (int change = 0; change < 50; ++change) {
                Message changed(fields.begin(), fields.end());
                for (std::size_t i = 0; i < 1 + random() % 4; ++i)
                    changed[random() % changed.size()] = static_cast<std::uint8_t>(random());
                read_all(changed);
            }
        }
        Message noise(random() % 400);
        for (auto& byte : noise)
            byte = static_cast<std::uint8_t>(random());
        read_all(noise);
    }
}

TEST(Frames, ComeWholeInWhateverPieces) {
    Samples samples(7);
    std::mt19937 random(3);
    std::vector<Message> sent;
    Message stream;
    for (int i = 0; i < 200; ++i) {
        sent.push_back(frame_of(samples.events()));
        stream.insert(stream.end(), sent.back().begin(), sent.back().end());
    }
    FrameReader reader;
    std::size_t arrived = 0;
    for (std::size_t at = 0; at < stream.size();) {
        const std::size_t piece = std::min<std::size_t>(1 + random() % 300, stream.size() - at);
        reader.add(std::span(stream).subspan(at, piece));
        at += piece;
        auto frame = reader.next();
        for (; frame.ok() && *frame; frame = reader.next(), ++arrived) {
            EXPECT_TRUE(std::ranges::equal((*frame)->fields, fields_of(sent.at(arrived))));
        }
        ASSERT_TRUE(frame.ok());
    }
    EXPECT_EQ(arrived, sent.size());
}

TEST(Frames, LengthsAndKindsThatCannotBeAreRefused) {
    for (const Message& bytes :
         {Message{0, 0, 0, 0}, Message{255, 255, 255, 255, 4}, Message{1, 0, 0, 0, 200}}) {
        FrameReader reader;
        reader.add(bytes);
        EXPECT_FALSE(reader.next().ok());
    }
}

}  // namespace
}  // namespace percheron::parallel
