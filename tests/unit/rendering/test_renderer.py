"""What `Renderer` promises beyond plain conversations: recorded tokens, endings, limits, odd calls, odd templates."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from offline_arl.errors import TemplateError, UsageError
from offline_arl.rendering import Renderer
from offline_arl.trajectories.schema import (
    Context,
    Message,
    MessageError,
    Producer,
    ReasoningPart,
    Source,
    TextPart,
    TokenRecord,
    ToolCall,
    Trajectory,
    text_message,
    tool_call,
)

PRESERVING = ["qwen2.5", "qwen3", "qwen3.5", "llama3.1", "llama3.2", "hermes", "smollm2", "mistral", "gemma", "tiny"]
SYSTEM, HELLO = text_message("system", "Be brief."), text_message("user", "Cancel order 17.")


def trajectory(*messages: Message, tools=None, **fields) -> Trajectory:
    contexts = [] if tools is None else [Context(start=0, tools=json.dumps(tools))]
    return Trajectory("t", list(messages), Source("test"), contexts=contexts, **fields)


def assistant(text: str | None, *calls: ToolCall, **fields) -> Message:
    return Message(role="assistant", content=None if text is None else [TextPart(text)], tool_calls=[*calls], **fields)


def result(text: str, call_id: str | None = None) -> Message:
    return Message(role="tool", content=[TextPart(text)], tool_call_id=call_id)


def actions(renderer: Renderer, rendered: Trajectory) -> list[str]:
    return [
        renderer.tokenizer.decode(segment.token_ids[start:end])
        for segment in renderer.render(rendered)
        for _, start, end in segment.step_spans()
    ]


def whole_text(renderer: Renderer, rendered: Trajectory) -> str:
    (segment,) = renderer.render(rendered)
    return renderer.tokenizer.decode(segment.token_ids)


LOOP = (
    SYSTEM,
    HELLO,
    assistant(None, tool_call("cancel", {"id": "17"}, id="call_1")),
    result("done", "call_1"),
    assistant("Cancelled."),
    text_message("user", "Thanks."),
    assistant("Bye."),
)


class TestRecordedTokens:
    def test_own_tokens_are_kept_as_they_are(self, renderer_of):
        renderer = renderer_of("qwen2.5")
        # An odd tokenization that rendering would never give: letter by letter.
        stop = renderer.stop_token_ids[0]
        odd = [token for char in "Cancelled." for token in renderer.tokenizer.encode(char)] + [stop]
        record = TokenRecord(odd, renderer.fingerprint, logprobs=[-0.5 * i for i in range(len(odd))])
        messages = list(LOOP)
        messages[4] = msgspec.structs.replace(messages[4], tokens=record)
        (segment,) = renderer.render(trajectory(*messages))
        (plain,) = renderer.render(trajectory(*LOOP))
        spans, plain_spans = segment.step_spans(), plain.step_spans()
        _, start, end = spans[1]
        assert segment.token_ids[start:end].tolist() == odd
        assert segment.token_ids[:start].tolist() == plain.token_ids[: plain_spans[1][1]].tolist()
        assert segment.token_ids[end:].tolist() == plain.token_ids[plain_spans[1][2] :].tolist()
        np.testing.assert_allclose(segment.logprobs[start:end], record.logprobs)
        assert np.isnan(np.delete(segment.logprobs, np.s_[start:end])).all()
        assert segment.rendered  # the other steps were
        assert plain.logprobs is None

    def test_all_recorded_is_not_rendered(self, renderer_of):
        renderer = renderer_of("qwen2.5")
        record = TokenRecord([*renderer.tokenizer.encode("Hi"), renderer.stop_token_ids[0]], renderer.fingerprint)
        (segment,) = renderer.render(trajectory(HELLO, assistant("Hi", tokens=record)))
        assert not segment.rendered

    def test_tokens_of_another_template_are_rendered_anew(self, renderer_of):
        renderer = renderer_of("qwen2.5")
        record = TokenRecord([1, 2, 3], "another")
        with_record = trajectory(HELLO, assistant("Hi", tokens=record))
        (segment,) = renderer.render(with_record)
        (plain,) = renderer.render(trajectory(HELLO, assistant("Hi")))
        assert segment.token_ids.tolist() == plain.token_ids.tolist()
        assert segment.rendered

    @pytest.mark.parametrize("family", PRESERVING)
    def test_cut_for_length_gets_the_stop_token_as_context(self, family, renderer_of):
        renderer = renderer_of(family)
        cut = renderer.tokenizer.encode("Let me", add_special_tokens=False)
        reply = text_message("user", "Go on.")
        tokens = renderer.prompt([SYSTEM, HELLO], None) + cut
        extended = renderer.extend(tokens, [reply], None)
        assert extended[: len(tokens)] == tokens
        assert extended[len(tokens)] == renderer.stop_token_ids[0]
        assert extended == renderer.extend([*tokens, renderer.stop_token_ids[0]], [reply], None)
        # ... and rendering the recorded turn gives the same tokens, the added stop token outside the mask.
        first = assistant("Let me", tokens=TokenRecord(cut, renderer.fingerprint))
        (segment,) = renderer.render(trajectory(SYSTEM, HELLO, first, reply, assistant("Yes.")))
        (_, start, end), second = segment.step_spans()
        assert segment.token_ids[: second[1]].tolist() == extended
        assert (start, end) == (len(tokens) - len(cut), len(tokens))
        assert not segment.action_mask[end]

    def test_a_rewriting_template_never_mixes_recorded_and_rewritten_turns(self, renderer_of):
        """Each prompt is what `prompt` gave at the time, though the sampled thought is not shown any more."""
        renderer = renderer_of("qwen3-original")
        sampled = "<think>\nHm.\n</think>\n\nHello."
        ids = [*renderer.tokenizer.encode(sampled), renderer.stop_token_ids[0]]
        first = msgspec.structs.replace(renderer.parse(ids), tokens=TokenRecord(ids, renderer.fingerprint))
        more = text_message("user", "More")
        segments = renderer.render(trajectory(HELLO, first, more, assistant("Bye.")))
        assert [segment.step_spans()[0][0] for segment in segments] == [0, 1]
        for segment, seen in zip(segments, ([HELLO], [HELLO, first, more]), strict=True):
            _, start, _ = segment.step_spans()[0]
            assert segment.token_ids[:start].tolist() == renderer.prompt(seen, None)
        assert "Hm." not in renderer.tokenizer.decode(segments[1].token_ids)


class TestWhatIsTrained:
    def test_only_the_policys_own_messages(self, renderer_of):
        renderer = renderer_of("qwen2.5")
        rendered = trajectory(
            text_message("assistant", "Welcome!", kind="script"),
            HELLO,
            text_message("assistant", "A demonstration.", kind="demonstration"),
            HELLO,
            assistant("Mine."),
            HELLO,
            assistant("Mine too, not to be trained.", trainable=False),
            HELLO,
            assistant("Last.", producer=Producer("model", "gpt")),
        )
        assert actions(renderer, rendered) == ["Mine.<|im_end|>", "Last.<|im_end|>"]
        (segment,) = renderer.render(rendered)
        assert [step for step, _, _ in segment.step_spans()] == [0, 2]  # numbered as in step_indices
        assert "A demonstration." in renderer.tokenizer.decode(segment.token_ids)

    def test_nothing_to_train_gives_no_segment(self, renderer_of):
        assert renderer_of("tiny").render(trajectory(SYSTEM, HELLO)) == []
        assert renderer_of("tiny").render(trajectory(HELLO, text_message("assistant", "Hi", kind="human"))) == []

    @pytest.mark.parametrize("family", PRESERVING)
    def test_an_empty_turn_trains_its_stop_token(self, family, renderer_of):
        renderer = renderer_of(family)
        action = actions(renderer, trajectory(HELLO, assistant(None)))[0]
        stop = renderer.tokenizer.convert_ids_to_tokens(renderer.stop_token_ids[0])
        assert action.replace("<think>", "").replace("</think>", "").strip() == stop


class TestSegments:
    def test_a_rewriting_template_gives_each_step_its_own_prompt(self, renderer_of, caplog):
        renderer = renderer_of("qwen3-original")
        assert not renderer.prefix_preserving
        segments = renderer.render(trajectory(*LOOP))
        assert [segment.step_spans()[0][0] for segment in segments] == [0, 1, 2]
        for segment, seen in zip(segments, (2, 4, 6), strict=True):
            (_, start, end) = segment.step_spans()[0]
            assert end == len(segment)
            assert segment.token_ids[:start].tolist() == renderer.prompt(LOOP[:seen], None)
            assert renderer.tokenizer.decode(segment.token_ids[start:]).startswith("<think>\n\n</think>\n\n")
        with pytest.raises(TemplateError, match=r"Renderer\.prompt"):
            renderer.extend([1, 2], [HELLO], None)

    def test_reasoning_stays_in_one_segment_while_the_template_keeps_it(self, renderer_of):
        """Qwen 3 drops reasoning only once the user speaks again."""
        renderer = renderer_of("qwen3-original")
        thought = Message(
            role="assistant",
            content=[ReasoningPart("It is 17.")],
            tool_calls=[tool_call("cancel", {"id": "17"}, id="call_1")],
        )
        last = Message(role="assistant", content=[ReasoningPart("Fine."), TextPart("Cancelled.")])
        segments = renderer.render(
            trajectory(SYSTEM, HELLO, thought, result("done"), last, text_message("user", "Thanks"), assistant("Bye"))
        )
        assert [[step for step, _, _ in segment.step_spans()] for segment in segments] == [[0, 1], [2]]
        assert "It is 17." in renderer.tokenizer.decode(segments[0].token_ids)
        assert "It is 17." not in renderer.tokenizer.decode(segments[1].token_ids)

    def test_the_rewriting_is_logged(self, tokenizer_of, caplog):
        with caplog.at_level(logging.WARNING):
            Renderer(tokenizer_of("qwen3"), training_template=False)
        assert "rewrites earlier turns" in caplog.text

    def test_the_training_variant_is_logged_and_kept_by_a_saved_policy(
        self, tokenizer_of, renderer_of, caplog, tmp_path
    ):
        tokenizer = tokenizer_of("qwen3")
        with caplog.at_level(logging.INFO):
            renderer = Renderer(tokenizer)
        assert "training variant" in caplog.text
        assert renderer.prefix_preserving
        assert tokenizer.chat_template != renderer.chat_template  # the user's tokenizer is not touched
        again = Renderer(tokenizer, chat_template=renderer.chat_template)
        assert again.fingerprint == renderer.fingerprint != renderer_of("qwen3-original").fingerprint

    def test_new_tools_midway_begin_a_new_segment(self, renderer_of, tools):
        renderer = renderer_of("qwen2.5")
        contexts = [Context(0, json.dumps(tools[:1])), Context(5, json.dumps(tools))]
        first, second = renderer.render(msgspec.structs.replace(trajectory(*LOOP), contexts=contexts))
        assert [step for step, _, _ in first.step_spans()] == [0, 1]
        assert [step for step, _, _ in second.step_spans()] == [2]
        assert "cancel_reservation" not in renderer.tokenizer.decode(first.token_ids)
        assert "cancel_reservation" in renderer.tokenizer.decode(second.token_ids)
        start = second.step_spans()[0][1]
        assert second.token_ids[:start].tolist() == renderer.prompt(LOOP[:6], tools)

    @pytest.mark.parametrize("family", ["tiny", "qwen2.5", "qwen3-original"])
    @pytest.mark.parametrize("share", [0.9, 0.5, 0.3])
    def test_a_token_limit_gives_windows_that_train_each_step_once(self, family, share, renderer_of):
        renderer = renderer_of(family)
        messages = [SYSTEM, HELLO]
        for turn in range(12):
            call = tool_call("cancel", {"id": str(turn)}, id=f"call_{turn}")
            messages += [assistant(f"Turn {turn}", call), result(f"done {turn} " * 3, f"call_{turn}")]
        rendered = trajectory(*messages, assistant("All done."))
        whole = renderer.render(rendered)
        limit = int(share * max(map(len, whole)))
        segments = renderer.render(rendered, max_tokens=limit)
        assert all(len(segment) <= limit for segment in segments)
        steps = [step for segment in segments for step, _, _ in segment.step_spans()]
        assert steps == list(range(13))

        def trained(parts):
            return [part.token_ids[start:end].tolist() for part in parts for _, start, end in part.step_spans()]

        assert trained(segments) == trained(whole)
        # The system prompt and the first request are in every window, and tool results follow their calls.
        for segment in segments:
            text = renderer.tokenizer.decode(segment.token_ids)
            assert "Be brief." in text
            assert "Cancel order 17." in text
            for turn in range(12):
                assert f"done {turn} " not in text or f"Turn {turn}" in text

    def test_no_limit_no_windows(self, renderer_of):
        renderer = renderer_of("tiny")
        (whole,) = renderer.render(trajectory(*LOOP))
        (same,) = renderer.render(trajectory(*LOOP), max_tokens=len(whole))
        assert same.token_ids.tolist() == whole.token_ids.tolist()

    def test_a_step_beyond_the_limit_is_left_out_and_said(self, renderer_of, caplog):
        renderer = renderer_of("tiny")
        rendered = trajectory(HELLO, assistant("Short."), HELLO, assistant("long " * 400), HELLO, assistant("Short."))
        with caplog.at_level(logging.INFO):
            segments = renderer.render(rendered, max_tokens=200)
        assert [step for segment in segments for step, _, _ in segment.step_spans()] == [0, 2]
        assert "1 of 3 steps (first: message 3) have more than 200 tokens" in caplog.text


class TestCalls:
    @pytest.mark.parametrize("family", [name for name in PRESERVING if name not in ("qwen3.5",)])
    @pytest.mark.parametrize("raw", ['{"id": 17', "[1, 2]", "id=17", '{"id": "a"} trailing'])
    def test_arguments_that_are_not_json_are_rendered_raw(self, family, raw, renderer_of):
        renderer = renderer_of(family)
        broken = tool_call("cancel", raw, id="call_1")
        assert broken.arguments is None
        rendered = trajectory(HELLO, assistant("So:", broken), result("error", "call_1"), assistant("Oh."))
        (segment,) = renderer.render(rendered)
        _, start, end = segment.step_spans()[0]
        text = renderer.tokenizer.decode(segment.token_ids[start:end])
        assert text.count(raw) == 1
        assert json.dumps(raw) not in text
        parsed = renderer.parse(segment.token_ids[start:end].tolist())
        assert parsed.text.strip() == "So:"
        (call,) = parsed.tool_calls
        assert call.parse_error is not None
        if family != "mistral":  # its parser cannot part the name from a broken list
            assert (call.name, call.arguments_raw) == ("cancel", raw)

    @pytest.mark.parametrize("family", PRESERVING)
    def test_parallel_calls(self, family, renderer_of):
        renderer = renderer_of(family)
        calls = [tool_call("cancel", {"id": str(number)}, id=f"call_{number}") for number in range(3)]
        answers = [result(f"done {number}", f"call_{number}") for number in range(3)]
        rendered = trajectory(HELLO, assistant(None, *calls), *answers, assistant("All cancelled."))
        (segment,) = renderer.render(rendered)
        (_, start, end), (_, second, _) = segment.step_spans()
        parsed = renderer.parse(segment.token_ids[start:end].tolist())
        assert parsed.text == ""
        assert [(call.name, call.arguments) for call in parsed.tool_calls] == [
            ("cancel", {"id": str(i)}) for i in range(3)
        ]
        assert renderer.extend(segment.token_ids[:end].tolist(), answers, None) == segment.token_ids[:second].tolist()

    @pytest.mark.parametrize("family", PRESERVING)
    def test_text_beside_a_call_is_kept(self, family, renderer_of):
        renderer = renderer_of(family)
        rendered = trajectory(HELLO, assistant("I cancel it now.", tool_call("cancel", {"id": "17"})))
        (segment,) = renderer.render(rendered)
        _, start, end = segment.step_spans()[0]
        parsed = renderer.parse(segment.token_ids[start:end].tolist())
        assert parsed.text == "I cancel it now."
        assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("cancel", {"id": "17"})]

    @pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3.1", "smollm2", "tiny"])
    def test_what_was_sampled_and_could_not_be_read_comes_back_the_same(self, family, renderer_of):
        renderer = renderer_of(family)
        (segment,) = renderer.render(trajectory(HELLO, assistant(None, tool_call("cancel", {"id": "17"}))))
        _, start, end = segment.step_spans()[0]
        good = renderer.tokenizer.decode(segment.token_ids[start : end - 1])
        for sampled in (good.replace('"id": ', "id "), good.replace("cancel", ""), good.replace('"name"', '"nam"')):
            ids = renderer.tokenizer.encode(sampled, add_special_tokens=False)
            message = renderer.parse(ids)
            if message.tool_calls:
                assert message.tool_calls[0].parse_error is not None
            action = actions(renderer, trajectory(HELLO, message))[0]
            assert action == sampled + renderer.tokenizer.convert_ids_to_tokens(renderer.stop_token_ids[0])

    def test_tool_results_get_the_name_of_their_call(self, renderer_of):
        text = whole_text(renderer_of("hermes"), trajectory(*LOOP))
        assert '{"name": "cancel", "content": "done"}' in text

    def test_a_tool_error_without_text_is_shown(self, renderer_of):
        failed = Message(role="tool", tool_call_id="call_1", error=MessageError("timeout", "no answer in 10 s"))
        messages = [*LOOP[:3], failed, *LOOP[4:]]
        assert "no answer in 10 s" in whole_text(renderer_of("tiny"), trajectory(*messages))


class TestReasoning:
    @pytest.mark.parametrize("family", PRESERVING)
    def test_reasoning_is_trained_and_parsed_back(self, family, renderer_of):
        renderer = renderer_of(family)
        message = Message(role="assistant", content=[ReasoningPart("It is\n17."), TextPart("Done.")])
        (segment,) = renderer.render(trajectory(SYSTEM, HELLO, message))
        _, start, end = segment.step_spans()[0]
        parsed = renderer.parse(segment.token_ids[start:end].tolist())
        assert (parsed.reasoning, parsed.text) == ("It is\n17.", "Done.")

    def test_reasoning_written_into_the_text_is_recognized(self, renderer_of):
        inline = assistant("<think>\nIt is 17.\n</think>\n\nDone.")
        parted = Message(role="assistant", content=[ReasoningPart("It is 17."), TextPart("Done.")])
        renderer = renderer_of("qwen3")
        assert actions(renderer, trajectory(HELLO, inline)) == actions(renderer, trajectory(HELLO, parted))


class TestTemplates:
    def test_a_template_without_tools_gets_hermes_style(self, tokenizer_of, tools, caplog):
        with caplog.at_level(logging.INFO):
            renderer = Renderer(tokenizer_of("smollm2"))
        assert "has no tools" in caplog.text
        assert renderer.tool_format == "hermes"
        listed = "\n".join(json.dumps(tool) for tool in tools)
        assert whole_text(renderer, trajectory(*LOOP[:5], tools=tools)) == (
            "<|im_start|>system\nBe brief.\n\nYou can call these functions:\n<tools>\n" + listed + "\n</tools>\n\n"
            "To call a function, write a JSON object inside <tool_call></tool_call> tags:\n<tool_call>\n"
            '{"name": <function name>, "arguments": <arguments object>}\n</tool_call><|im_end|>\n'
            "<|im_start|>user\nCancel order 17.<|im_end|>\n"
            '<|im_start|>assistant\n<tool_call>\n{"name": "cancel", "arguments": {"id": "17"}}\n</tool_call>'
            "<|im_end|>\n"
            "<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\nCancelled.<|im_end|>"
        )

    def test_without_tools_the_adapted_template_is_the_original(self, renderer_of):
        """The template's own default system prompt stays."""
        assert whole_text(renderer_of("smollm2"), trajectory(HELLO, assistant("Hi"))) == (
            "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n<|im_start|>user\nCancel order 17.<|im_end|>\n"
            "<|im_start|>assistant\nHi<|im_end|>"
        )

    def test_a_template_without_system_role_gets_it_in_the_first_user_turn(self, renderer_of, tools):
        text = whole_text(renderer_of("gemma"), trajectory(*LOOP, tools=tools))
        assert text.startswith("<bos><start_of_turn>user\nBe brief.\n\nYou can call these functions:\n<tools>\n")
        assert "</tool_call>\n\nCancel order 17.<end_of_turn>\n" in text

    def test_a_tokenizer_without_template_uses_chatml_if_it_can(self, make_tokenizer):
        with_tokens = make_tokenizer(("<|im_start|>", "<|im_end|>"), eos="<|im_end|>", template=None)
        assert whole_text(Renderer(with_tokens), trajectory(*LOOP[:2], assistant("Hi"))) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nCancel order 17.<|im_end|>\n"
            "<|im_start|>assistant\nHi<|im_end|>"
        )
        with pytest.raises(TemplateError, match="no chat template"):
            Renderer(make_tokenizer(("</s>",), eos="</s>", template=None))

    @pytest.mark.parametrize(
        ("template", "problem"),
        [
            ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", "no trainable"),
            (
                "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
                "{% if add_generation_prompt %}assistant: {% endif %}",
                "without a control token",
            ),
            ("{{ raise_exception('no chats here') }}", "no chats here"),
            ("{% for", "refuses"),
        ],
    )
    def test_a_template_that_cannot_be_trained_is_refused(self, template, problem, make_tokenizer):
        with pytest.raises(TemplateError, match=problem):
            Renderer(make_tokenizer(("</s>",), eos="</s>", template=template))

    def test_a_conversation_that_the_template_refuses_names_the_trajectory(self, renderer_of):
        two_users = (
            trajectory(HELLO, HELLO, assistant("Hi"), trajectory_id="x")
            if False
            else trajectory(HELLO, HELLO, assistant("Hi"))
        )
        with pytest.raises(TemplateError, match=r"trajectory t: .*roles must alternate"):
            renderer_of("gemma").render(two_users)

    def test_unknown_tool_format(self, tokenizer_of):
        with pytest.raises(UsageError, match="unknown tool_format 'xml'"):
            Renderer(tokenizer_of("tiny"), tool_format="xml")

    def test_the_developer_role_becomes_system_where_it_is_unknown(self, renderer_of):
        developer = text_message("developer", "Be brief.")
        renderer = renderer_of("qwen2.5")
        assert whole_text(renderer, trajectory(developer, HELLO, assistant("Hi"))) == whole_text(
            renderer, trajectory(SYSTEM, HELLO, assistant("Hi"))
        )

    def test_todays_date_is_not_part_of_a_prompt(self, renderer_of):
        assert "Today Date: 26 Jul 2024" in whole_text(renderer_of("llama3.2"), trajectory(HELLO, assistant("Hi")))

    def test_a_template_that_looks_into_messages_is_rendered_turn_by_turn(self, make_tokenizer):
        """In the style of SmolLM3: a word in the system prompt puts an empty thought into the generation prompt."""
        template = (
            "{%- set quiet = '/no_think' in messages[0].content -%}"
            "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' }}"
            "{%- if quiet and m.role == 'assistant' -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}"
            "{{ m.content + '<|im_end|>\n' }}{%- endfor -%}"
            "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}"
            "{%- if quiet -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}{%- endif -%}"
        )
        renderer = Renderer(make_tokenizer(("<|im_start|>", "<|im_end|>"), eos="<|im_end|>", template=template))
        assert renderer.prefix_preserving
        quiet = text_message("system", "Be brief. /no_think")
        for system in (SYSTEM, quiet):
            messages = (system, HELLO, assistant("Yes."), HELLO, assistant("No."))
            (segment,) = renderer.render(trajectory(*messages))
            assert actions(renderer, trajectory(*messages)) == ["Yes.<|im_end|>", "No.<|im_end|>"]
            for (_, start, _), seen in zip(segment.step_spans(), (2, 4), strict=True):
                assert segment.token_ids[:start].tolist() == renderer.prompt(messages[:seen], None)

    def test_template_arguments(self, tokenizer_of):
        """With thinking switched off the empty thought is part of the prompt, not of the action."""
        renderer = Renderer(tokenizer_of("qwen3"), template_arguments={"enable_thinking": False})
        assert actions(renderer, trajectory(HELLO, assistant("Hi"))) == ["Hi<|im_end|>"]
        assert renderer.fingerprint != Renderer(tokenizer_of("qwen3")).fingerprint

    @pytest.mark.parametrize("family", ["qwen2.5", "llama3.1", "smollm2", "tiny"])
    def test_the_fingerprint_survives_saving(self, family, renderer_of, tmp_path):
        from transformers import AutoTokenizer

        renderer = renderer_of(family)
        saved = renderer.tokenizer
        saved.save_pretrained(tmp_path)
        loaded = AutoTokenizer.from_pretrained(tmp_path)
        loaded.pad_token = loaded.eos_token
        loaded("some text", padding=True, truncation=True, max_length=4)  # leaves its mark in the backend
        assert Renderer(loaded).fingerprint == renderer.fingerprint

    def test_other_vocabulary_other_fingerprint(self, make_tokenizer, tokenizer_of):
        template = tokenizer_of("smollm2").chat_template
        names = ("<|im_start|>", "<|im_end|>")
        one = Renderer(make_tokenizer(names, eos="<|im_end|>", template=template))
        other = Renderer(make_tokenizer(("<|extra|>", *names), eos="<|im_end|>", template=template))
        assert one.fingerprint != other.fingerprint


def test_importing_and_using_the_renderer_imports_no_deep_learning_library():
    code = (
        "import sys, offline_arl.rendering; "
        "assert not {'torch', 'transformers', 'trl', 'vllm'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
