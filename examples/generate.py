"""Complete a batch with speculation, and read what it cost: .venv/bin/python THIS_FILE."""

from foreword import LLM, SamplingParams

llm = LLM("smollm2-135m-instruct", speculative_config={"method": "ngram"})
params = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=48)
talks = [
    [{"role": "user", "content": "Name three rivers in Europe."}],
    [{"role": "user", "content": "Write a haiku about rain."}],
]
for answer in llm.chat(talks, params):
    output = answer.outputs[0]
    speculation = output.metrics["speculative_decoding"]
    print(output.text)
    print(
        f"-- {len(output.token_ids)} tokens, seed {output.seed}, "
        f"{speculation['mean_acceptance_length']:.2f} tokens per pass\n"
    )
llm.close()
