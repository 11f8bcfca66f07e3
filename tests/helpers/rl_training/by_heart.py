"""A policy of a tenth of a million parameters that has learnt one reply by heart, in a second or two."""

from pathlib import Path

# It is shown the beginnings of messages, which are the same for every machine and task: more takes longer to learn.
TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message.role }}\n{{ message.content[:60] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


def save_tokenizer(folder: Path, text: str, template: str | None = TEMPLATE) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text] * 2, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    made.chat_template = template
    made.save_pretrained(folder)


def save_policy(folder: Path, messages: list[dict[str, str]], reply: str) -> None:
    """A Llama that answers these messages, and all that begin alike, with `reply`."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    save_tokenizer(folder, reply)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    answer = [*tokenizer(reply)["input_ids"], tokenizer.eos_token_id]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would wait for each other most of the time
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0)
    whole = torch.tensor([prompt + answer])
    labels = torch.tensor([[-100] * len(prompt) + answer])
    for _ in range(400):
        loss = model(input_ids=whole, labels=labels).loss
        if loss < 0.005:
            break
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    said = model.generate(torch.tensor([prompt]), max_new_tokens=len(answer), do_sample=False)[0]
    assert said[len(prompt) :].tolist() == answer, "it has not learnt its reply"
    model.save_pretrained(folder)
    torch.set_num_threads(threads)
