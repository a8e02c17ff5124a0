// A program in Node: `node node_program.mjs KIND`, with npm's `openai` and `@anthropic-ai/sdk` as their READMEs write it.
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const FIRST = 'Weather, and 100 + 3.5?';
const SECOND = 'Again, please.';
const tools = [
  ['get_weather', 'The weather in a city', { unit: { type: 'string' }, city: { type: 'string' } }],
  ['add', 'The sum of two numbers', { a: { type: 'number' }, b: { type: 'number' } }],
].map(([name, description, properties]) => ({ name, description, parameters: { type: 'object', properties } }));

function call(name, given) {
  return name === 'add' ? JSON.stringify({ sum: given.a + given.b }) : ` sunny in ${given.city} \n`;
}

async function chat(isStreamed) {
  const client = new OpenAI();
  const messages = [{ role: 'system', content: 'You are careful.' }];
  const request = { model: 'm', messages, tools: tools.map((tool) => ({ type: 'function', function: tool })) };
  const answers = [];
  for (const content of [FIRST, SECOND]) {
    messages.push({ role: 'user', content });
    for (;;) {
      const completion = isStreamed
        ? await client.chat.completions.stream(request).finalChatCompletion()
        : await client.chat.completions.create(request);
      const { message } = completion.choices[0];
      messages.push(message);
      if (!message.tool_calls?.length) {
        answers.push(message.content);
        break;
      }
      for (const { id, function: f } of message.tool_calls) {
        messages.push({ role: 'tool', tool_call_id: id, content: call(f.name, JSON.parse(f.arguments)) });
      }
    }
  }
  return answers;
}

async function runTools() {
  const client = new OpenAI();
  const runner = client.chat.completions.runTools({
    model: 'm',
    messages: [{ role: 'user', content: FIRST }],
    tools: tools.map((tool) => ({
      type: 'function',
      function: { ...tool, parse: JSON.parse, function: (given) => call(tool.name, given) },
    })),
  });
  return [await runner.finalContent()];
}

async function responses(isStored) {
  const client = new OpenAI();
  const options = { model: 'm', instructions: 'You are careful.', tools: tools.map((t) => ({ type: 'function', strict: false, ...t })) };
  const answers = [];
  let [history, previous] = [[], undefined];
  for (const content of [FIRST, SECOND]) {
    let added = [{ role: 'user', content }];
    for (;;) {
      history = [...history, ...added];
      const response = isStored
        ? await client.responses.create({ ...options, input: added, previous_response_id: previous })
        : await client.responses.create({ ...options, input: history, store: false, include: ['reasoning.encrypted_content'] });
      previous = response.id;
      history = [...history, ...response.output];
      const calls = response.output.filter((item) => item.type === 'function_call');
      if (!calls.length) {
        answers.push(response.output_text);
        break;
      }
      added = calls.map(({ call_id, name, arguments: given }) => ({
        type: 'function_call_output',
        call_id,
        output: call(name, JSON.parse(given)),
      }));
    }
  }
  return answers;
}

async function messages(isStreamed) {
  const client = new Anthropic();
  const messages = [];
  const request = {
    model: 'm',
    max_tokens: 4000,
    system: 'You are careful.',
    thinking: { type: 'enabled', budget_tokens: 1024 },
    tools: tools.map(({ parameters, ...tool }) => ({ ...tool, input_schema: parameters })),
    messages,
  };
  const answers = [];
  for (const content of [FIRST, SECOND]) {
    messages.push({ role: 'user', content });
    for (;;) {
      const reply = isStreamed
        ? await client.messages.stream(request).finalMessage()
        : await client.messages.create(request);
      messages.push({ role: 'assistant', content: reply.content });
      const calls = reply.content.filter((block) => block.type === 'tool_use');
      if (!calls.length) {
        answers.push(reply.content.filter((block) => block.type === 'text').map((block) => block.text).join(''));
        break;
      }
      const results = calls.map((x) => ({ type: 'tool_result', tool_use_id: x.id, content: call(x.name, x.input) }));
      messages.push({ role: 'user', content: results });
    }
  }
  return answers;
}

const kinds = {
  chat: () => chat(false),
  'chat-streamed': () => chat(true),
  'run-tools': runTools,
  'responses-stored': () => responses(true),
  'responses-not-stored': () => responses(false),
  messages: () => messages(false),
  'messages-streamed': () => messages(true),
};
console.log(JSON.stringify(await kinds[process.argv[2]]()));
