"""Chat templates of the common model families, written by hand: how each writes turns, and with what it begins them.

TAGGED ones mark the answers with generation tags, as training templates do. They are short: what is here is what makes
a family different (merged system messages, thoughts that are dropped from earlier turns, channels, two content shapes).
"""

from __future__ import annotations

MARKS = [
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]",
    "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|start|>",
    "<|channel|>", "<|message|>", "<|return|>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
]  # fmt: skip

CHATML = """
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{- m.content + '<|im_end|>\n' }}{% endgeneration %}
{%- else %}{{- m.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if not tools is none %}{{- 'tools: ' + (tools | tojson) }}{%- endif %}
{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}
{%- if m.role == 'assistant' %}{%- generation %}{{- m.content | trim + '<|eot_id|>' }}{%- endgeneration %}
{%- else %}{{- m.content | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}"""

MISTRAL = """{{- bos_token }}
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set turns = messages[1:] %}
{%- else %}{%- set turns = messages %}{%- endif %}
{%- for m in turns %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
{%- if m.role == 'user' %}
{%- if loop.last and system is defined %}{{- '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}
{%- else %}{{- '[INST] ' + m.content + '[/INST]' }}{%- endif %}
{%- else %}{%- generation %}{{- ' ' + m.content + eos_token }}{%- endgeneration %}{%- endif %}
{%- endfor %}"""

GEMMA = """{{- bos_token }}
{%- for m in messages %}{%- set role = 'model' if m.role == 'assistant' else m.role %}
{%- if m.role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{{- '<start_of_turn>' + role + '\n' }}
{%- if m.role == 'assistant' %}{%- generation %}{{- m.content | trim + '<end_of_turn>\n' }}{%- endgeneration %}
{%- else %}{{- m.content | trim + '<end_of_turn>\n' }}{%- endif %}{%- endfor %}"""

PHI3 = """{% for m in messages %}{{ '<|' + m.role + '|>\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|end|>\n' }}{% endgeneration %}
{%- else %}{{ m.content + '<|end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""

QWEN3 = """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}{%- set content = m.content if m.content is string else '' %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' %}{%- generation %}
{%- set thought = m.reasoning_content or '' %}
{%- if '</think>' in content %}{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last %}{{- '<think>\n' + thought + '\n</think>\n\n' }}{%- endif %}
{{- content + '<|im_end|>' }}{%- endgeneration %}{{- '\n' }}
{%- else %}{{- content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

GPT_OSS = """{{- '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}
{%- for m in messages %}{%- if m.role == 'assistant' %}
{%- if m.thinking and loop.last %}{{- '<|start|>assistant' }}{%- generation %}
{{- '<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{%- endgeneration %}{%- endif %}
{{- '<|start|>assistant' }}{%- generation %}{{- '<|channel|>final<|message|>' + m.content }}
{%- if loop.last %}{{- '<|return|>' }}{%- else %}{{- '<|end|>' }}{%- endif %}{%- endgeneration %}
{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""

NEMOTRON = """{%- macro turn(m) %}{{- m.content | trim }}{%- endmacro %}
{%- set thinks = enable_thinking if enable_thinking is defined else true %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' %}{%- generation %}
{%- if thinks and loop.last %}{{- '<think>\n' ~ (m.reasoning_content or '') ~ '\n</think>\n' }}
{%- else %}{{- '<think></think>' }}{%- endif %}{{- turn(m) + '<|im_end|>\n' }}{%- endgeneration %}
{%- else %}{{- turn(m) + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"""

DEEPSEEK = """{{- bos_token }}{%- for m in messages %}
{%- if m.role == 'system' %}{{- m.content }}{%- elif m.role == 'user' %}{{- '<｜User｜>' + m.content }}
{%- else %}{{- '<｜Assistant｜>' }}{%- set c = m.content %}
{%- if '</think>' in c %}{%- set c = c.split('</think>')[-1] %}{%- endif %}
{%- generation %}{{- c + '<｜end▁of▁sentence｜>' }}{%- endgeneration %}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\n' }}{%- endif %}"""

VISION = """{%- for m in messages %}{{- m.role | capitalize + ': ' }}
{%- if m.role == 'assistant' %}{%- generation %}
{%- for part in m.content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
{{- '<end_of_utterance>\n' }}{%- endgeneration %}
{%- else %}{%- for part in m.content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
{{- '<end_of_utterance>\n' }}{%- endif %}{%- endfor %}"""

TAGGED = {
    "chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA, "phi3": PHI3, "qwen3": QWEN3,
    "gpt-oss": GPT_OSS, "nemotron": NEMOTRON, "deepseek": DEEPSEEK,
}  # fmt: skip
