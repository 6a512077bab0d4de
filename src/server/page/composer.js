// The message box: text, images, keys, and what is being edited.

const IMAGE_TYPES = ['image/png', 'image/jpeg', 'image/webp'];

export class Composer {
    #form;
    #input;
    #notice;
    #editing;
    #attachments;
    #images = [];
    #onSend;

    // `onSend({content, images})` returns whether the message was taken.
    constructor(root, { onSend, onCancelEditing }) {
        this.#form = root.getElementById('composer');
        this.#input = root.getElementById('message-input');
        this.#notice = root.getElementById('composer-notice');
        this.#editing = root.getElementById('editing');
        this.#attachments = root.getElementById('attachments');
        this.#onSend = onSend;

        this.#form.addEventListener('submit', (event) => {
            event.preventDefault();
            this.#send();
        });
        this.#input.addEventListener('input', () => this.#fit());
        this.#input.addEventListener('keydown', (event) => {
            // Enter that ends the composition of a character belongs to the input method.
            if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            this.#send();
        });
        root.getElementById('cancel-editing').addEventListener('click', onCancelEditing);
        this.#listenForImages(root);
    }

    focus() { this.#input.focus(); }
    get isEditing() { return !this.#editing.hidden; }

    // Fills the box, to edit a message that was sent or to clear it.
    set({ content, images }, { editing }) {
        this.#input.value = content;
        this.#images = [...images];
        this.#editing.hidden = !editing;
        this.#showImages();
        this.#fit();
        this.notify('');
    }

    notify(sentence) {
        this.#notice.textContent = sentence;
        this.#notice.hidden = sentence === '';
    }

    #send() {
        const message = { content: this.#input.value.trimEnd(), images: this.#images };
        if (message.content.trim() === '' && message.images.length === 0) return;
        if (this.#onSend(message)) this.set({ content: '', images: [] }, { editing: false });
    }

    #fit() {
        this.#input.style.height = 'auto';
        this.#input.style.height = `${this.#input.scrollHeight}px`;
    }

    #listenForImages(root) {
        const file = root.getElementById('image-file');
        root.getElementById('add-image').addEventListener('click', () => file.click());
        file.addEventListener('change', () => {
            this.#add(file.files);
            file.value = '';
        });
        this.#input.addEventListener('paste', (event) => {
            if (event.clipboardData.files.length === 0) return;
            event.preventDefault();
            this.#add(event.clipboardData.files);
        });
        const carriesFiles = (event) => event.dataTransfer?.types.includes('Files');
        root.addEventListener('dragover', (event) => {
            if (!carriesFiles(event)) return;
            event.preventDefault();
            this.#form.classList.add('drop-target');
        });
        root.addEventListener('dragleave', (event) => {
            if (event.relatedTarget === null) this.#form.classList.remove('drop-target');
        });
        root.addEventListener('drop', (event) => {
            this.#form.classList.remove('drop-target');
            if (!carriesFiles(event)) return;
            event.preventDefault();
            this.#add(event.dataTransfer.files);
        });
    }

    async #add(files) {
        this.notify('');
        for (const file of [...files]) {
            if (!IMAGE_TYPES.includes(file.type)) {
                this.notify(`${file.name} cannot be sent: use PNG, JPEG or WebP images.`);
                continue;
            }
            try {
                this.#images.push({ name: file.name, url: await dataUrl(file) });
            } catch {
                this.notify(`${file.name} could not be read.`);
            }
        }
        this.#showImages();
        this.focus();
    }

    #showImages() {
        this.#attachments.hidden = this.#images.length === 0;
        this.#attachments.replaceChildren(...this.#images.map((image, index) => {
            const item = document.createElement('li');
            const picture = document.createElement('img');
            picture.src = image.url;
            picture.alt = image.name;
            const remove = document.createElement('button');
            remove.type = 'button';
            remove.className = 'remove-image';
            remove.textContent = '×';
            remove.setAttribute('aria-label', `Remove ${image.name}`);
            remove.addEventListener('click', () => {
                this.#images.splice(index, 1);
                this.#showImages();
                this.focus();
            });
            item.append(picture, remove);
            return item;
        }));
    }
}

function dataUrl(file) {
    return new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result);
        reader.onerror = () => reject(reader.error);
        reader.readAsDataURL(file);
    });
}
